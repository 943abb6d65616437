"""A run that is killed for memory, alone in its namespaces.

The kernel's OOM killer takes a process of a cgroup that the test makes, where it can make one. So that any process may
be the one that is killed, the other tests kill it themselves, and the kernel's counter is theirs: over the cgroups of
the run's namespace lies a folder of the test's own.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from convrec.runs.folder import latest_step
from tests.cgroups import Cgroup, cgroup_of_test

from .alone import Alone, alone
from .conftest import FAULTS, ROOT, Demo, processes_named

pytestmark = FAULTS
END_SECONDS = 200
OUT_OF_MEMORY = re.compile(
    r"Out of memory: the kernel's OOM killer killed (?:a process|\d+ processes) in this run's cgroup: the run "
    r"used up to ([\d.]+) GiB; ([\d.]+) GiB is (.*)\. Lower actor_rollout_ref\.actor\.ppo_max_token_len_per_gpu"
)


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    with cgroup_of_test() as cgroup:
        yield cgroup


def training_environment(trained: Demo, run_folder: Path) -> dict[str, str]:
    environment = os.environ | trained.files | {"PYTHON": sys.executable, "SAVE_PATH": str(run_folder)}
    environment |= {"MODEL_PATH": str(trained.out / "sft"), "TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4", "SAVE_FREQ": "1"}
    environment |= {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64", "TOTAL_STEPS": "1000", "TEST_FREQ": "-1"}
    return environment


def training_command(first: str) -> list[str]:
    """Train when a command of the shell has done what comes before."""
    train = shlex.join(["bash", str(ROOT / "run_rank_grpo.sh"), "trainer.val_before_train=false"])
    return ["sh", "-c", f"{first} && exec {train}"]


def test_a_run_killed_for_memory_says_what_it_used(trained: Demo, cgroup: Cgroup, tmp_path: Path) -> None:
    """It trains for two steps; then there is no room for what a step takes at its peak."""
    run_folder = tmp_path / "run"

    def has_lost_a_process() -> bool:
        cgroup.limit_to_what_is_used()
        return cgroup.count_kills() > 0

    with alone(training_command(cgroup.enter), training_environment(trained, run_folder), tmp_path, grace=30) as run:
        run.wait_for(lambda: latest_step(run_folder) >= 2)
        run.wait_for(has_lost_a_process, 100)
        limit = int(cgroup.limit.read_text())
        status = run.end(END_SECONDS)
    print(run.said()[-1000:])
    found = OUT_OF_MEMORY.search(run.said())
    assert found, run.said()[-3000:]
    assert 0.5 < float(found[1]) < 20
    assert found[2] == f"{limit / 2**30:.1f}"
    assert found[3] == f"the limit in {cgroup.limit}"
    assert status in (1, 137)  # the driver may be the one that is taken
    assert " gone" in run.said()


def driver(run: Alone) -> psutil.Process:
    """The process that has started Ray."""
    process = processes_named(run.process, "gcs_server")[0].parent()
    assert process
    return process


def engine(run: Alone) -> psutil.Process:
    return processes_named(run.process, "VLLM::EngineCore")[0]


@pytest.mark.parametrize(
    ("victim", "status", "said"),
    [(engine, 1, " is gone (killed, or out of memory)"), (driver, 137, "its process is gone without a word")],
)
def test_run_killed_for_memory_reports_it_and_its_usage(
    trained: Demo, tmp_path: Path, victim: Callable[[Alone], psutil.Process], status: int, said: str
) -> None:
    run_folder = tmp_path / "run"
    cgroups = tmp_path / "cgroups"
    (cgroups / "memory").mkdir(parents=True)
    for folder in (cgroups, cgroups / "memory"):  # version 2, and 1
        (folder / "memory.events").write_text("oom_kill 0\n")
        (folder / "memory.max").write_text(f"{16 * 2**30}\n")
    command = training_command(f"mount --rbind {shlex.quote(str(cgroups))} /sys/fs/cgroup")
    with alone(command, training_environment(trained, run_folder), tmp_path, grace=30) as run:
        run.wait_for(lambda: latest_step(run_folder) >= 2)
        for folder in (cgroups, cgroups / "memory"):
            (folder / "memory.events").write_text("oom_kill 1\n")
        victim(run).kill()
        assert run.end(END_SECONDS) == status, run.said()[-3000:]
    assert said in run.said()
    found = OUT_OF_MEMORY.search(run.said())
    assert found, run.said()[-3000:]
    assert 0.5 < float(found[1]) < 20  # 3 to 4 were seen
