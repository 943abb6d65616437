"""One set-up for the slow tests: the demo, cut to a few steps, run as a user runs it and interrupted once."""

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from convrec.checkpoints.models import resolve_model
from convrec.data.schema import split_prompt
from convrec.runs import guard
from convrec.runs.folder import RL_ENDED, latest_step, read_metrics
from data_prep.own import convert_own

# Where torch is imported here, it sets this to a folder in /tmp, which commands would take for what a user has set.
os.environ[guard.COMPILED] = guard.compile_cache()
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("convrec", "reward", "data_prep", "recipes", "conf")
SFT_STEPS, RL_STEPS = 40, 3
OF_THE_PASS = "training/rollout_probs_diff_mean"  # verl logs it where it has made the pass for old log-probs
FILES = {"TRAIN_FILE": "train", "VAL_FILE": "validation", "CATALOG_FILE": "catalog"}


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.e2e)


class Demo:
    """What the two starts of the small demo left behind."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.files = {
            "TRAIN_FILE": str(out / "data" / "train.parquet"),
            "VAL_FILE": str(out / "data" / "validation.parquet"),
            "CATALOG_FILE": str(out / "data" / "catalog.parquet"),
        }

    def start(self) -> subprocess.Popen:
        command = [sys.executable, "-m", "recipes", "demo", "--out", str(self.out)]
        command += ["--sft-steps", str(SFT_STEPS), "--rl-steps", str(RL_STEPS)]
        trackers = {"LOGGER": "console,tensorboard,swanlab", "SWANLAB_MODE": "offline"}
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **trackers},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # a background job of a script has Ctrl-C ignored, and would hand that on
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


def trained_steps(run_folder: Path) -> list[int]:
    """Steps that have logged all of their training metrics, which verl's RL does after saving, and its SFT before."""
    return [row["step"] for row in read_metrics(run_folder) if {RL_ENDED, "train/loss"} & row.keys()]


def descendants(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def processes_named(run: subprocess.Popen, start: str) -> list[psutil.Process]:
    found = []
    for process in descendants(run):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if process.name().startswith(start) else []
    return found


def reachable_from_elsewhere(processes: list[psutil.Process]) -> list[tuple[str, str, int]]:
    """(process, address, port) of everything that listens on more than the loopback."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            listening = [c.laddr for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
            found += [
                (process.name(), address.ip, address.port)
                for address in listening
                if not ipaddress.ip_address(address.ip.removeprefix("::ffff:")).is_loopback
            ]
    return found


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def with_code_of_its_own(model: Path, folder: Path) -> Path:
    """A copy that names code of its own, as Phi-3's folder does beside transformers' own class: verl would look
    for that code when it saves, and fail."""
    shutil.copytree(resolve_model(model), folder)
    code = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"auto_map": code}))
    return folder


@contextlib.contextmanager
def killed_on_error(process: subprocess.Popen) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(process.pid, signal.SIGKILL)  # the run's guard ends the rest
        raise


def wait_for(process: subprocess.Popen, happened: Callable[[], object], seconds: float = 600) -> None:
    """It must not end before."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, "".join((text or "")[-3000:] for text in process.communicate())
        assert time.monotonic() < deadline
        time.sleep(0.1)


FAULTS = [  # of whole runs, each alone in its namespaces (alone.py)
    pytest.mark.faults,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of its own: root alone may make them"),
]
READY = os.environ.get("E2E_DEMO")  # a folder in which one session leaves its demo for the next


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Demo:
    keep = READY is not None and not Path(READY).exists()
    demo = Demo(Path(READY) if keep else tmp_path_factory.mktemp("demo") / "out")

    # first start: Ctrl-C (a signal to the whole foreground group) once Rank-GRPO has a checkpoint
    first = demo.start()
    with killed_on_error(first):
        run = demo.out / "rank_grpo"
        wait_for(first, lambda: trained_steps(run) and latest_step(run) >= 1)
        demo.children = descendants(first)
        os.killpg(first.pid, signal.SIGINT)
        _, demo.first_stderr = first.communicate(timeout=120)
    demo.first_status = first.returncode
    demo.step_when_stopped = latest_step(demo.out / "rank_grpo")
    _, demo.left_behind = psutil.wait_procs(demo.children, timeout=60)

    second = demo.start()
    with killed_on_error(second):
        demo.stdout, demo.stderr = second.communicate(timeout=800)
    demo.status = second.returncode
    assert demo.status == 0, demo.stderr[-3000:]
    return demo


@pytest.fixture(scope="session")
def trained(request: pytest.FixtureRequest) -> Demo:
    """A finished small demo: what an earlier session has left in E2E_DEMO, else this session's."""
    if READY is not None and (Path(READY) / "summary.json").exists():
        return Demo(Path(READY))
    return request.getfixturevalue("demo")


@pytest.fixture(scope="session")
def own_data(trained, tmp_path_factory) -> dict[str, str]:
    """The demo's conversations as a user's own files: JSONL, and a catalog of titles without years.

    In every other training row half of the titles are wanted: lists of a barely trained model must earn something.
    """
    source = tmp_path_factory.mktemp("own")
    titles = dict.fromkeys(row["title"] for row in pq.read_table(trained.files["CATALOG_FILE"]).to_pylist())
    (source / "films.jsonl").write_text("".join(json.dumps({"title": title}) + "\n" for title in titles))
    with open(source / "dialogues.jsonl", "w") as lines:
        for split in ("train", "validation", "test"):
            for place, row in enumerate(
                pq.read_table(trained.out / "data" / f"{split}.parquet").slice(0, 300).to_pylist()
            ):
                conversation = split_prompt(row["prompt"][0]["content"])[1]
                truth = dict.fromkeys(title for title, _ in row["groundtruth_with_release_year"])
                if split == "train" and place % 2:
                    truth |= dict.fromkeys([*titles][::2])
                own = {"conversation": conversation, "ground_truth": [*truth], "seen": row["seen_titles"]}
                lines.write(json.dumps(own | {"split": split, "conversation_id": row["sample_id"]}) + "\n")
    folder = source / "data"
    convert_own([source / "dialogues.jsonl"], source / "films.jsonl", folder)
    return {name: str(folder / f"{file}.parquet") for name, file in FILES.items()}


@pytest.fixture(scope="session")
def recipe(trained):
    """Run run_rank_grpo.sh from `root` on the demo's data with these variables; returns (status, stderr, log)."""

    def run(save_path: Path, *overrides: str, root: Path = ROOT, **variables: str) -> tuple[int, str, str]:
        environment = {**os.environ, "PYTHON": sys.executable, "SAVE_PATH": str(save_path), **trained.files}
        environment |= {"TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4", "MAX_PROMPT_LENGTH": "256"}
        environment |= {"MAX_RESPONSE_LENGTH": "64", "SAVE_FREQ": "100", "TEST_FREQ": "100"} | variables
        done = subprocess.run(
            ["bash", str(root / "run_rank_grpo.sh"),
             "trainer.val_before_train=false", "data.val_max_samples=8", *overrides],
            env=environment, cwd=save_path.parent, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        log = save_path / "run.log"
        return done.returncode, done.stderr, log.read_text(errors="replace") if log.exists() else ""

    return run


@pytest.fixture
def copy_of_project(tmp_path):
    """A copy of the program in which a test can break something."""
    copy = tmp_path / "copy"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("run_sft.sh", "run_rank_grpo.sh"):
        shutil.copy(ROOT / name, copy / name)

    def replace(file: str, old: str, new: str) -> Path:
        text = (copy / file).read_text()
        assert old in text, f"{file} no longer holds {old!r}"
        (copy / file).write_text(text.replace(old, new))
        return copy

    return replace


@pytest.fixture(scope="session")
def nodes(trained, own_data, tmp_path_factory):
    """A Ray cluster of two nodes, for all tests that submit to one."""
    from .two_nodes import Cluster

    cluster = Cluster(tmp_path_factory.mktemp("cluster"), trained, own_data)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
