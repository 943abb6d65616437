"""The commands of every tutorial, run in the order of the page at the smallest size, in a folder like the project's.

What is run is the page's own text: each edit below names what it replaces, which must stand there. `make demo` and
`make serve` are left to the end-to-end tests of the demo and of the service.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from convrec.base.files import read_json
from convrec.runs.folder import latest_step
from tests.tutorials.shell import SECONDS, run_commands

pytestmark = pytest.mark.tutorial
ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "tutorials"
LINKS = ("run_sft.sh", "run_rank_grpo.sh", "recipes", "convrec", "conf", "reward", "data_prep")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SMALL_DEMO = [sys.executable, "-m", "recipes", "demo", "--sft-steps", "20", "--rl-steps", "2"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the project's scripts and a small demo in outputs/demo (that of E2E_DEMO, where it is finished)."""
    folder = tmp_path_factory.mktemp("project")
    for name in LINKS:
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)  # pages say `source .venv/bin/activate`
    ready = Path(os.environ.get("E2E_DEMO", "none"))
    if (ready / "summary.json").exists():
        shutil.copytree(ready, folder / "outputs" / "demo")
    else:
        subprocess.run(SMALL_DEMO, cwd=folder, check=True, capture_output=True, timeout=900)
    for split in ("validation", "test"):  # a few conversations are enough to see that a command works
        file = folder / "outputs" / "demo" / "data" / f"{split}.parquet"
        pq.write_table(pq.read_table(file).slice(0, 16), file)
    return folder


def blocks(page: str, *edits: tuple[str, str]) -> list[tuple[str, str]]:
    """(language, text) of the page's blocks after the edits, (what stands there, what is run instead)."""
    text = (PAGES / page).read_text(encoding="utf-8")
    for old, new in edits:
        assert old in text, f"{page} has no {old!r} any more"
        text = text.replace(old, new)
    return BLOCK.findall(text)


def environment() -> dict[str, str]:
    hidden = ("RAY_ADDRESS", "PYTHONPATH", "E2E_DEMO")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}", "PYTHON": sys.executable}


def shell(project: Path, *scripts: str) -> str:
    """Run the blocks of a page in one shell; return what they print."""
    return run_commands(project, "\n".join(scripts), environment())


def scripts_of(found: list[tuple[str, str]]) -> list[str]:
    return [text for language, text in found if language == "bash"]


def test_the_demos_page(project: Path) -> None:
    demo, *look, serve, dry_run = scripts_of(blocks("demo.md"))
    assert (demo, serve) == ("make demo\n", "make serve\n")
    printed = shell(project, *look, dry_run)
    assert "outputs/report.html" in printed
    assert list((project / "outputs" / "plots").glob("*.png"))
    assert (project / "outputs" / "report.html").stat().st_size > 10_000
    assert "sweep" in printed
    assert not (project / "checkpoints").exists()  # a dry run makes nothing


@pytest.mark.timeout(5400)  # twenty minutes on two quiet cores
def test_a_pretrained_model(project: Path) -> None:
    """SmolLM2 itself, from the Hub or the package index, in two steps; a few conversations are enough."""
    small_data = "--requests hard --num-items 10 --train 64 --validation 8 --test 8 --out outputs/pretrained/data"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    demo, look, serve, ask = scripts_of(
        blocks(
            "pretrained.md",
            ("make setup", f"convrec data sample {small_data}"),
            ("convrec demo --pretrained\n", "convrec demo --pretrained --sft-steps 1 --rl-steps 1\n"),
            ("--retrieval outputs", f"--port {port} --retrieval outputs"),
            ("127.0.0.1:8000/v1", f"127.0.0.1:{port}/v1"),
        )
    )
    shell(project, demo, look)
    summary = read_json(project / "outputs" / "pretrained" / "summary.json")
    assert list(summary["models"]) == ["popularity", "retrieval", "zero_shot", "sft", "rank_grpo", "fused"]
    with service(project, serve):
        answer = json.loads(shell(project, ask))
    assert len(answer["items"]) == 5


def test_a_reward_of_ones_own(project: Path) -> None:
    found = blocks("own-reward.md", ("TOTAL_STEPS=48", "TOTAL_STEPS=2"), ("TRAIN_BATCH_SIZE=16", "TRAIN_BATCH_SIZE=4"))
    ((_, reward),) = (block for block in found if block[0] == "python")
    (project / "my_rewards.py").write_text(reward)
    printed = shell(project, *scripts_of(found))
    assert latest_step(project / "outputs" / "compare" / "costly_gaps") == 2
    assert "ndcg@20" in printed.lower()
    assert (project / "outputs" / "compare.html").exists()


def test_ones_own_catalog(project: Path) -> None:
    found = blocks(
        "own-catalog.md",
        ("SAVE_PATH=checkpoints/books_sft", "SAVE_PATH=checkpoints/books_sft TOTAL_STEPS=2"),
        ("SAVE_PATH=checkpoints/books ", "SAVE_PATH=checkpoints/books TOTAL_STEPS=1 ROLLOUT_N=2 "),
        ("--share 1", "--share 1 --teacher retrieval --judge cooccurrence"),  # the page's own words for "no server"
        ("export LLM_BASE_URL=http://127.0.0.1:8000/v1 LLM_MODEL=served-name", ""),
    )
    for language, file in (("json", "dialogues.jsonl"), ("csv", "books.csv")):
        ((_, text),) = (block for block in found if block[0] == language)
        (project / file).write_text(text)
    printed = shell(project, *scripts_of(found))
    assert "Recall@3" in printed
    rows = pq.read_table(project / "outputs" / "books" / "rows.parquet")
    assert rows.num_rows == 1


def execute_notebook(folder: Path, *edits: tuple[str, str], seconds: float = SECONDS) -> list[dict]:
    """Run its cells in the folder; returns what they show. FOLDER/executed.ipynb has both, after an error too."""
    import nbformat
    from nbclient import NotebookClient

    text = (PAGES / "demo.ipynb").read_text(encoding="utf-8")
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    notebook = nbformat.reads(text, as_version=4)
    hidden = {name: os.environ.pop(name) for name in ("RAY_ADDRESS", "PYTHONPATH", "E2E_DEMO") if name in os.environ}
    try:
        NotebookClient(notebook, timeout=seconds, resources={"metadata": {"path": str(folder)}}).execute()
    finally:
        os.environ.update(hidden)
        nbformat.write(notebook, folder / "executed.ipynb")
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def check_shown(shown: list[dict]) -> None:
    assert sum("image/png" in output.get("data", {}) for output in shown) == 3
    printed = "".join(output.get("text", "") for output in shown)
    assert "wanted:" in printed
    assert "rows paired" in printed


def test_the_notebook(project: Path) -> None:
    check_shown(execute_notebook(project, ("OWN_STEPS = 450, 48, 16", "OWN_STEPS = 20, 2, 2")))
    assert latest_step(project / "outputs" / "own") == 2


@pytest.mark.skipif(
    not os.environ.get("NOTEBOOK"), reason="NOTEBOOK=FOLDER runs it as it stands, in a quarter of an hour"
)
@pytest.mark.timeout(7200)
def test_the_notebook_as_it_stands() -> None:
    """Nothing shortened, from an empty folder: README's demo and 16 steps with the other reward. Both gain over SFT."""
    folder = Path(os.environ["NOTEBOOK"]).resolve()
    folder.mkdir(parents=True)
    check_shown(execute_notebook(folder, seconds=7200))
    demo, own = folder / "outputs" / "demo", folder / "outputs" / "own"
    assert [latest_step(run) for run in (demo / "sft", demo / "rank_grpo", own)] == [450, 48, 16]
    gains = [read_json(demo / "summary.json")["gain"], read_json(own / "of_own" / "metrics.json")["paired"]]
    for gain in gains:
        assert gain["ndcg@20"]["mean"] > 2 * gain["ndcg@20"]["se"]


@contextmanager
def service(project: Path, script: str) -> Iterator[None]:
    """The block that serves, in a terminal of its own until Ctrl-C."""
    log = project / "service.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script.replace("\nconvrec", "\nexec convrec")],
            cwd=project,
            env=environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + SECONDS
        while not re.search(r"^serving \w", log.read_text(), re.MULTILINE):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130


def test_from_clicks_to_a_better_model(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = blocks(
        "feedback.md",
        ("SHOPPERS, READS_ON = 1000,", "SHOPPERS, READS_ON = 300,"),
        ("--feedback --state", f"--port {port} --feedback --state"),
        ("127.0.0.1:8000", f"127.0.0.1:{port}"),
        ("TOTAL_STEPS=48", "TOTAL_STEPS=2"),
        ("TRAIN_BATCH_SIZE=16", "TRAIN_BATCH_SIZE=4"),
    )
    ((_, shopper),) = (block for block in found if block[0] == "python")
    (project / "shopper.py").write_text(shopper)
    serve, visit, *others = scripts_of(found)
    with service(project, serve):
        lists, clicks = map(int, re.findall(r"\d+", shell(project, visit))[:2])
    assert lists == 300
    assert clicks > 20
    printed = shell(project, *others)
    assert latest_step(project / "outputs" / "loop" / "rank_grpo") == 2
    rows = pq.read_table(project / "outputs" / "loop" / "data" / "train.parquet").to_pylist()
    for row in rows:
        truth, shown = row["groundtruth_with_release_year"], row["exposure"]
        assert 0 < len(truth) <= len(shown) <= 20
        assert all(pair in shown for pair in truth)
    before, after = (read_json(project / "outputs" / "loop" / name / "metrics.json") for name in ("before", "after"))
    first, second = (one["results"]["paper"]["model"] for one in (before, after))
    gain = second["ndcg@20"]["mean"] - first["ndcg@20"]["mean"]
    assert first["n"] == second["n"] == after["paired"]["n"] == 16
    assert after["paired"]["ndcg@20"]["mean"] == pytest.approx(gain)
    assert printed.lower().count("ndcg@20") >= 3  # of each model, and the difference


def test_a_model_that_asks(project: Path) -> None:
    found = blocks(
        "asking.md",
        ("--out outputs/ask/data", "--out outputs/ask/data --train 200 --validation 16 --test 16"),
        ("TOTAL_STEPS=1400", "TOTAL_STEPS=20"),
        ("TOTAL_STEPS=60", "TOTAL_STEPS=2"),
        ("ASK_COST=0.2 TRAIN_BATCH_SIZE=16", "ASK_COST=0.2 TRAIN_BATCH_SIZE=4"),
        ("data.val_max_samples=128", "data.val_max_samples=16"),
    )
    ((_, program),) = (block for block in found if block[0] == "python")
    (project / "ask.py").write_text(program)
    printed = shell(project, *scripts_of(found), "python ask.py")
    assert latest_step(project / "outputs" / "ask" / "rank_grpo") == 2
    rule, silent = (
        read_json(project / "outputs" / "ask" / name / "metrics.json")["results"]["paper"]
        for name in ("rule", "silent")
    )
    assert rule["fixed"]["questions"]["mean"] == 2
    assert silent["model"]["questions"]["mean"] == 0
    assert "useful questions" in printed
    assert re.search(r"^5 \S", printed, re.MULTILINE)  # the list's last item
    assert "Traceback" not in printed  # vLLM's, of an engine that ends with the program


def test_ratings(project: Path) -> None:
    found = blocks(
        "ratings.md",
        ("range(3000)", "range(300)"),
        ("TOTAL_STEPS=450", "TOTAL_STEPS=20"),
        ("TOTAL_STEPS=48", "TOTAL_STEPS=1 ROLLOUT_N=2"),
        ("data.val_max_samples=64", "data.val_max_samples=16"),
        ("--max-response-length 100", "--max-response-length 100 --limit 24"),
    )
    ((_, program),) = (block for block in found if block[0] == "python")
    (project / "make_ratings.py").write_text(program)
    printed = shell(project, *scripts_of(found))
    assert "300 users have too few ratings for a row" in printed
    for name in ("popularity", "neighbours", "ease"):
        assert f"the model minus {name}, ndcg@20: " in printed
    metrics = json.loads((project / "outputs" / "ratings" / "rank_grpo_test" / "metrics.json").read_text())
    ndcg = {name: result["ndcg@20"]["mean"] for name, result in metrics["results"]["paper"].items()}
    assert min(ndcg["ease"], ndcg["neighbours"]) > ndcg["popularity"]
    assert latest_step(project / "outputs" / "ratings" / "rank_grpo") == 1


def raylets() -> set[psutil.Process]:
    return {process for process in psutil.process_iter(["name"]) if process.info["name"] == "raylet"}


@pytest.fixture
def without_ray() -> Iterator[None]:
    """The page ends with `ray stop`, which ends every Ray of this user, and takes Ray's own ports."""
    if raylets():
        pytest.skip("Ray runs on this machine already: the page's `ray stop` would end it")
    yield
    subprocess.run([Path(sys.executable).parent / "ray", "stop", "--force"], capture_output=True, check=False)


def test_a_cluster_run(project: Path, without_ray: None) -> None:
    start, look, first, others, evaluate = scripts_of(
        blocks("cluster-run.md", ("TOTAL_STEPS=8", "TOTAL_STEPS=3"), ("TRAIN_BATCH_SIZE=16", "TRAIN_BATCH_SIZE=4"))
    )
    follow, stop, again = others.splitlines()
    run_folder = project / "outputs" / "cluster"
    printed = shell(project, start, look, first)
    job = re.findall(r"rank-grpo-[\w-]+", printed)[-1]
    deadline = time.monotonic() + SECONDS
    while latest_step(run_folder) < 1 and not list(run_folder.glob("metrics/*.jsonl")):
        assert time.monotonic() < deadline, printed
        time.sleep(0.5)
    variables = "\n".join(line for line in (start + look).splitlines() if line.startswith("export"))
    printed = shell(project, variables, stop.replace("JOB", job), f"{follow.replace('JOB', job)} || true")
    assert "stopped on request" in printed
    begun_at = latest_step(run_folder)
    assert 1 <= begun_at < 3
    printed = shell(project, variables, again, evaluate)
    assert f"resuming after step {begun_at}" in printed
    assert latest_step(run_folder) == 3
    assert not raylets()
