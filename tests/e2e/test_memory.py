"""A run that is killed for memory, alone in its namespaces: the kill is real, the kernel's counter is the test's.

Over the cgroups of its namespace lies a folder of the test's own. A kill by the kernel itself would take a cgroup.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from convrec.runs.folder import latest_step

from .alone import Alone, alone
from .conftest import FAULTS, ROOT, processes_named

pytestmark = FAULTS
GONE = "its process is gone without a word"


def driver(run: Alone) -> psutil.Process:
    """The process that has started Ray."""
    process = processes_named(run.process, "gcs_server")[0].parent()
    assert process
    return process


def engine(run: Alone) -> psutil.Process:
    return processes_named(run.process, "VLLM::EngineCore")[0]


@pytest.mark.parametrize(
    ("victim", "status", "said"), [(engine, 1, " is gone (killed, or out of memory)"), (driver, 137, GONE)]
)
def test_a_run_that_is_killed_for_memory_says_so_and_what_it_used(
    trained, tmp_path: Path, victim: Callable[[Alone], psutil.Process], status: int, said: str
) -> None:
    run_folder = tmp_path / "run"
    cgroups = tmp_path / "cgroups"
    (cgroups / "memory").mkdir(parents=True)
    for folder in (cgroups, cgroups / "memory"):  # version 2, and 1
        (folder / "memory.events").write_text("oom_kill 0\n")
        (folder / "memory.max").write_text(f"{16 * 2**30}\n")
    environment = os.environ | trained.files | {"PYTHON": sys.executable, "SAVE_PATH": str(run_folder)}
    environment |= {"MODEL_PATH": str(trained.out / "sft"), "TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4", "SAVE_FREQ": "1"}
    environment |= {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64", "TOTAL_STEPS": "1000", "TEST_FREQ": "-1"}
    train = shlex.join(["bash", str(ROOT / "run_rank_grpo.sh"), "trainer.val_before_train=false"])
    command = ["sh", "-c", f"mount --rbind {shlex.quote(str(cgroups))} /sys/fs/cgroup && exec {train}"]
    with alone(command, environment, tmp_path, grace=30) as run:
        run.wait_for(lambda: latest_step(run_folder) >= 2)
        for folder in (cgroups, cgroups / "memory"):
            (folder / "memory.events").write_text("oom_kill 1\n")
        victim(run).kill()
        assert run.end(200) == status, run.said()[-3000:]
    assert said in run.said()
    found = re.search(
        r"Out of memory: the kernel's OOM killer has taken a process of this run's cgroup: the run was seen to use up "
        r"to ([\d.]+) GiB; (?:16\.0|[\d.]+) GiB is the .*\. Lower actor_rollout_ref\.actor\.ppo_max_token_len_per_gpu",
        run.said(),
    )
    assert found, run.said()[-3000:]
    assert 0.5 < float(found[1]) < 20  # 3 to 4 were seen
