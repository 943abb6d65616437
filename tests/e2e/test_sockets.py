"""What evaluation and serving open to others, each alone in its namespaces with an address that others could reach."""

import json
import os
import signal
import subprocess
import sys
import time

from .alone import alone
from .conftest import FAULTS

pytestmark = FAULTS
PORT = "8000"
ASK = """
import sys, urllib.request
data = sys.argv[2].encode() if len(sys.argv) > 2 else None
request = urllib.request.Request(sys.argv[1], data, {"content-type": "application/json"})
print(urllib.request.urlopen(request, timeout=120).read().decode())
"""


def test_an_evaluation_opens_nothing(trained, tmp_path):
    """With two replicas: engines in processes of their own."""
    data = {"--data": "data/test.parquet", "--catalog": "data/catalog.parquet", "--train": "data/train.parquet"}
    command = [sys.executable, "-m", "recipes", "evaluate", "--model", str(trained.out / "sft"), "--replicas", "2"]
    command += [word for option, file in data.items() for word in (option, str(trained.out / file))]
    with alone([*command, "--limit", "16", "--out", str(tmp_path / "out")], dict(os.environ), tmp_path) as run:
        assert run.end(400) == 0, run.said()
    assert (tmp_path / "out" / "metrics.json").exists()


def test_a_service_opens_nothing_beyond_the_address_it_is_given(trained, tmp_path):
    command = [sys.executable, "-m", "recipes", "serve", "--model", str(trained.out / "rank_grpo"), "--port", PORT]
    command += ["--catalog", trained.files["CATALOG_FILE"], "--state", str(tmp_path / "state")]
    with alone(command, dict(os.environ), tmp_path) as run:

        def ask(path: str, question: dict | None = None) -> str:
            """An answer's text; an empty one where there is none."""
            inside = ["nsenter", "--net", "--target", str(run.pid), sys.executable, "-I", "-c", ASK]
            words = [f"http://127.0.0.1:{PORT}{path}", *([json.dumps(question)] if question else [])]
            return subprocess.run([*inside, *words], capture_output=True, text=True, check=False).stdout

        run.wait_for(lambda: ask("/health"), seconds=400)
        answer = json.loads(ask("/v1/recommendations", {"conversation": "USER: Any great war movies?", "k": 5}))
        assert len(answer["items"]) == 5
        time.sleep(1)  # what listens is looked at five times a second
        os.kill(run.pid, signal.SIGINT)
        assert run.end(60) == 130, run.said()
