"""Real signals to real runs, each alone in its namespaces: each signal in each phase of each stage, also where they
used to end a run with a traceback, an abort or without a word."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from convrec.runs.folder import latest_step

from .alone import Alone, alone
from .conftest import FAULTS, ROOT, Demo, descendants, processes_named, trained_steps

pytestmark = FAULTS

INT, TERM, USR1 = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1
END_SECONDS = 60  # the end of a step, its checkpoint and the end of the processes
AGAIN = "stopped; run the same command again"
T = TypeVar("T")
Moment = Callable[[Alone, Path], bool]


def ray_is_starting(run: Alone, run_folder: Path) -> bool:
    """Its handler of SIGTERM aborts the process until `ray.init` returns."""
    return bool(processes_named(run, "raylet"))


def vllm_is_starting(run: Alone, run_folder: Path) -> bool:
    return any("EngineCore" in " ".join(words) for words in of_each(descendants(run), psutil.Process.cmdline))


def of_each(processes: list[psutil.Process], what: Callable[[psutil.Process], T]) -> list[T]:
    """Of those that have not ended meanwhile."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found.append(what(process))
    return found


def generation_is_starting(run: Alone, run_folder: Path) -> bool:
    words = of_each(descendants(run), psutil.Process.cmdline)
    return any("convrec.inference.engines.child" in " ".join(of_one) for of_one in words)


def run_is_named(run: Alone, run_folder: Path) -> bool:
    """It holds its folder, and training is next."""
    return (run_folder / "starts.jsonl").exists()


def first_step_is_logged(run: Alone, run_folder: Path) -> bool:
    return any(path.stat().st_size for path in run_folder.glob("metrics/*.jsonl"))


def stack_of(process: psutil.Process) -> str:
    command = [Path(sys.executable).with_name("py-spy"), "dump", "--pid", str(process.pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def after(seconds: float) -> Moment:
    """Seconds after the process has its handlers: its imports, then its work."""
    since: dict[int, float] = {}

    def moment(run: Alone, run_folder: Path) -> bool:
        return bool(descendants(run)) and time.monotonic() - since.setdefault(run.pid, time.monotonic()) > seconds

    return moment


def within(function: str, step: int = 0) -> Moment:
    """The process that does the work is in this function, and so many steps are behind it."""

    def moment(run: Alone, run_folder: Path) -> bool:
        if step and not (first_step_is_logged(run, run_folder) and max(trained_steps(run_folder), default=0) >= step):
            return False
        # the fork, or the child in which an evaluation generates; what has started a guard and ended lies between
        states = of_each(descendants(run), lambda process: (process, process.status()))
        found = [process for process, state in states if state != psutil.STATUS_ZOMBIE]
        return any(re.search(rf"[ .]{function} \(", stack_of(process)) for process in found[:3])

    return moment


@dataclass(frozen=True)
class Stage:
    """A command, its environment, and what it says when it has been stopped before its first step."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    says: str = "stopped after step 0; the same command resumes"


def training(demo: Demo, out: Path, script: str) -> Stage:
    is_sft = script == "run_sft.sh"
    environment = demo.files | {"TRAIN_BATCH_SIZE": "4", "TOTAL_STEPS": "1000", "SAVE_PATH": str(out)}
    environment |= {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64", "PYTHON": sys.executable}
    environment |= {"MODEL_PATH": str(demo.out / ("model" if is_sft else "sft"))}
    if is_sft:
        environment["TRAIN_FILE"] = str(demo.out / "data" / "sft_train.parquet")
        environment["VAL_FILE"] = str(demo.out / "data" / "sft_validation.parquet")
        return Stage(("bash", str(ROOT / script)), environment)
    return Stage(("bash", str(ROOT / script), "trainer.val_before_train=false"), environment)


def evaluation(demo: Demo, out: Path) -> Stage:
    data = {"--data": "data/test.parquet", "--catalog": "data/catalog.parquet", "--train": "data/train.parquet"}
    words = [word for option, file in data.items() for word in (option, str(demo.out / file))]
    command = (sys.executable, "-m", "recipes", "evaluate", "--model", str(demo.out / "sft"), *words, "--out", str(out))
    return Stage(command, says=AGAIN)


def data_preparation(demo: Demo, out: Path) -> Stage:
    rows = [f"--{split}=100000" for split in ("train", "validation", "test")]
    return Stage((sys.executable, "-m", "recipes", "data", "sample", "--out", str(out), *rows), says=AGAIN)


def stopped(stage: Stage, folder: Path, moment: Moment, number: signal.Signals) -> tuple[str, int]:
    """Start it, signal it at the moment, and check how it ends.

    folder: its output is in `out` there. Returns its last line, and the last step that had ended when the signal came.
    """
    outside = {name: value for name, value in os.environ.items() if name != "SAVE_ON_TERM"}
    with alone([*stage.command], outside | stage.environment, folder) as run:
        run.wait_for(lambda: moment(run, folder / "out"))
        ended = max(trained_steps(folder / "out"), default=0)
        os.kill(run.pid, number)
        begin = time.monotonic()
        status = run.end(END_SECONDS)
    said = run.said()
    print(f"{number.name}: the end after {time.monotonic() - begin:.1f} s")
    assert status == 130, said[-3000:]
    lines = [line for line in said[max(0, said.find("starting ")) :].splitlines() if line.strip()]
    assert not [line for line in lines[:-1] if not is_progress(line)], said[-3000:]
    assert not (folder / "out" / "running").exists()
    return lines[-1], ended


def is_progress(line: str) -> bool:
    return any(word in line for word in ("starting", "step", "it/s", "prompts", "full log", "loading"))


SIGNALS = pytest.mark.parametrize("number", [TERM, INT, USR1], ids=lambda number: number.name)
OF_RANK_GRPO = {
    "ray_starts": ray_is_starting,
    "vllm_starts": vllm_is_starting,
    "rollout": within("sample", 1),
    "update": within("_update_actor", 1),
    "checkpoint": within("_save_checkpoint", 1),
    "validation": within("_validate", 1),
}
OF_SFT = {
    "start": run_is_named,  # then it imports torch and verl
    "step": within("train_batch", 1),
    "checkpoint": within("save_checkpoint", 1),
    "validation": within("infer_batch", 1),
}

# A step that is validated is not saved: the stop has to save it.
EACH_STEP = {"checkpoint": {"SAVE_FREQ": "1"}, "validation": {"TEST_FREQ": "1"}}


@SIGNALS
@pytest.mark.parametrize("phase", OF_RANK_GRPO)
def test_rank_grpo(trained, tmp_path, phase, number):
    """Each is the first one, and saves at the end of the step, where steps have begun."""
    out = tmp_path / "out"
    stage = training(trained, out, "run_rank_grpo.sh")
    in_steps = OF_RANK_GRPO[phase] not in (ray_is_starting, vllm_is_starting)
    stage.environment.update({"ROLLOUT_N": "4", "SAVE_FREQ": "1000", "TEST_FREQ": "-1"} | EACH_STEP.get(phase, {}))
    said, ended = stopped(stage, tmp_path, OF_RANK_GRPO[phase], number)
    step = latest_step(out)
    assert said == f"stopped {'on request ' if in_steps else ''}after step {step}; the same command resumes"
    assert (step >= 1) == in_steps
    if in_steps:
        assert step == max(trained_steps(out)) == ended + 1  # the step that was running is saved, and logged


@SIGNALS
@pytest.mark.parametrize("phase", OF_SFT)
def test_sft(trained, tmp_path, phase, number):
    out = tmp_path / "out"
    stage = training(trained, out, "run_sft.sh")
    in_steps = phase != "start"
    stage.environment.update({"SAVE_FREQ": "1000", "TEST_FREQ": "1000"} | EACH_STEP.get(phase, {}))
    said, _ = stopped(stage, tmp_path, OF_SFT[phase], number)
    assert said == f"stopped {'on request ' if in_steps else ''}after step {latest_step(out)}; the same command resumes"
    if in_steps:
        assert latest_step(out) == max(trained_steps(out))


@SIGNALS
@pytest.mark.parametrize("moment", [generation_is_starting, within("_run_engine")], ids=["vllm_starts", "lists"])
def test_evaluation(trained, tmp_path, moment, number):
    stage = evaluation(trained, tmp_path / "out")
    assert stopped(stage, tmp_path, moment, number)[0] == stage.says


@SIGNALS
@pytest.mark.parametrize("seconds", [0.3, 5], ids=["imports", "rows"])
def test_data_preparation(trained, tmp_path, seconds, number):
    stage = data_preparation(trained, tmp_path / "out")
    assert stopped(stage, tmp_path, after(seconds), number)[0] == stage.says
    assert {path.name for path in tmp_path.iterdir()} == {"said", "left.json"}  # neither the folder nor a part of it
