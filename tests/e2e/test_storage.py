"""Storage that fails under Rank-GRPO, and another number of processes: what is said, and what a run goes on from."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from convrec.checkpoints.saving import complete_steps
from convrec.runs.folder import LATEST, read_metrics
from convrec.runs.starts import read_starts

from .alone import alone
from .conftest import FAULTS, ROOT, flip_a_byte

pytestmark = FAULTS
NAMES = ("actor/policy_loss", "actor/grad_norm", "actor/kl", "rank_grpo/dcg", "rank_grpo/return@1")
Start = Callable[..., tuple[int, str]]


@pytest.fixture
def start(trained, tmp_path) -> Start:
    """Train to that step, a checkpoint each; returns the exit status and what was said.

    begun: is called when the run has passed its checks, which look for room, too.
    """

    def train(run: Path, steps: int, begun: Callable[[], object] | None = None, **variables: str) -> tuple[int, str]:
        before = len(read_starts(run))
        environment = os.environ | trained.files | {"PYTHON": sys.executable, "SAVE_PATH": str(run), "LR": "1e-3"}
        environment |= {"MODEL_PATH": str(trained.out / "sft"), "TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4"}
        environment |= {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64", "TEST_FREQ": "-1", "SAVE_FREQ": "1"}
        environment |= {"SAVE_KEEP": "all", "TOTAL_STEPS": str(steps), **variables}
        command = ["bash", str(ROOT / "run_rank_grpo.sh"), "trainer.val_before_train=false"]
        with alone([*command, "convrec.deterministic=true"], environment, tmp_path) as one:
            if begun:
                one.wait_for(lambda: len(read_starts(run)) > before)
                begun()
            return one.end(600), one.said()

    return train


def trained_steps(run: Path) -> list[int]:
    return [row["step"] for row in read_metrics(run) if "actor/policy_loss" in row]


def test_a_disk_that_is_full_costs_no_checkpoint_that_was_there(start: Start, tmp_path: Path) -> None:
    disk, run = tmp_path / "disk", tmp_path / "disk" / "run"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", disk], check=True)

    def resize(mib: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={mib}m", disk], check=True)

    try:
        status, said = start(run, 4, begun=lambda: resize(12))  # a checkpoint has 22 MiB
        assert status == 1, said
        assert "No space left on device" in said
        assert "there is no earlier checkpoint" in said
        assert "Make room" in said
        assert list(run.glob("global_step_*")) == []

        resize(300)
        status, said = start(run, 4, begun=lambda: resize(60))
        assert status == 1, said
        assert "step 3 is not saved, the checkpoint of step 2 is intact. Make room" in said
        assert complete_steps(run) == [1, 2]

        status, said = start(run, 4)
        assert status == 2, said  # before it starts
        assert "SAVE_PATH" in said

        resize(300)
        status, said = start(run, 4)
        assert status == 0, said
        assert "resuming after step 2" in said
        assert (complete_steps(run), trained_steps(run)) == ([1, 2, 3, 4], [1, 2, 3, 4])
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_what_cannot_be_written_is_one_line_and_starts_nothing(trained, start: Start, tmp_path: Path) -> None:
    """An adapter on read-only storage, whose merged model would be kept beside it; and a dry run on a full disk."""
    storage, run = tmp_path / "storage", tmp_path / "run"
    adapter = storage / "adapter"
    adapter.mkdir(parents=True)
    base = json.dumps({"base_model_name_or_path": str(trained.out / "sft")})
    (adapter / "adapter_config.json").write_text(base)
    subprocess.run(["mount", "--bind", storage, storage], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", storage], check=True)
    try:
        status, said = start(run, 1, MODEL_PATH=str(adapter))
    finally:
        subprocess.run(["umount", "--lazy", storage], check=True)
    assert status == 2, said
    (line,) = said.splitlines()
    assert line.startswith(f"error: {adapter}/merged: ")
    assert line.endswith("[model.read-only-storage]")
    assert "Read-only file system" in line
    assert not run.exists()

    environment = os.environ | trained.files | {"PYTHON": sys.executable, "MODEL_PATH": str(trained.out / "sft")}
    environment |= {"SAVE_PATH": str(run), "TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4", "TOTAL_STEPS": "1"}
    environment |= {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64"}
    command = f"bash {ROOT}/run_rank_grpo.sh --dry-run > /dev/full"
    with alone(["sh", "-c", command], environment, tmp_path) as one:
        assert one.end(200) == 1, one.said()
    assert one.said().splitlines()[-1] == "error: stdout: No space left on device: the output is truncated"
    assert "Traceback" not in one.said()
    assert not run.exists()


def test_resume_with_other_process_counts_matches_one_process(start: Start, tmp_path: Path) -> None:
    """1e-3 as in test_cluster.py: sums over two processes are made in another order."""
    run, one = tmp_path / "run", tmp_path / "one"
    status, said = start(run, 2, N_GPUS_PER_NODE="2")
    assert status == 0, said
    folder = run / "global_step_2" / "actor"
    flip_a_byte(folder / "model_world_size_2_rank_1.pt")

    status, said = start(run, 3, N_GPUS_PER_NODE="1")
    assert status == 0, said
    assert f"{folder / 'model_world_size_2_rank_1.pt'} has changed since it was written" in said
    assert "resuming after step 1" in said
    assert "2 processes saved it and 1 resume it: its shards are redistributed" in said

    status, said = start(run, 4, N_GPUS_PER_NODE="2")
    assert status == 0, said
    assert "1 processes saved it and 2 resume it" in said

    status, said = start(one, 4, N_GPUS_PER_NODE="1")
    assert status == 0, said
    disturbed, undisturbed = ({r["step"]: r for r in read_metrics(f) if "actor/policy_loss" in r} for f in (run, one))
    assert [*disturbed] == [*undisturbed] == [1, 2, 3, 4]
    for step, row in undisturbed.items():
        for name in NAMES:
            assert disturbed[step][name] == pytest.approx(row[name], rel=1e-3, abs=1e-4), (step, name)
    assert max(row["actor/grad_norm"] for row in undisturbed.values()) > 0

    for step in complete_steps(run):
        flip_a_byte(next((run / f"global_step_{step}" / "actor").glob("optim_world_size_*_rank_0.pt")))
    status, said = start(run, 5)
    assert status == 2, said
    assert str(run / LATEST) in said
    assert len(list(run.glob("global_step_*"))) == 4  # nothing is removed, nothing is trained anew
