"""A run on a disk that is really full: a file system of half a MiB in memory."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from convrec.checkpoints import saving
from convrec.runs.folder import latest_step
from recipes.launch.full_disk import explanation


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> OSError:
    """Write until there is no room. Returns the error."""
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"x" * 4096)
            except OSError as error:
                return error


def checkpoint(run: Path, step: int, size: int) -> None:
    def write() -> None:
        (run / f"global_step_{step}").mkdir()
        (run / f"global_step_{step}" / "model_world_size_1_rank_0.pt").write_bytes(os.urandom(size))
        saving.write_tracker(run, step)

    saving.save(run, step, write)


def test_a_full_disk_is_named_with_what_is_needed(small_disk: Path) -> None:
    run = small_disk / "run"
    checkpoint(run, 2, 100 * 1024)
    error = fill(run / "metrics.jsonl")
    said = explanation(error, run)
    assert said
    assert f"{run} (SAVE_PATH): 0 MiB free" in said
    assert "a checkpoint of this run takes 0 MiB, two are there at once" in said
    assert explanation(RuntimeError("a worker: OSError: [Errno 28] No space left on device"), run) == said
    assert explanation(ValueError("another"), run) is None


def test_the_last_complete_checkpoint_stays_and_the_run_goes_on_when_there_is_room(small_disk: Path) -> None:
    run = small_disk / "run"
    checkpoint(run, 2, 100 * 1024)
    (small_disk / "other").write_bytes(b"x" * 300 * 1024)  # the next one is larger than the last: it is begun
    with pytest.raises(RuntimeError, match=r"No space left on device.*; the checkpoint of step 2 is intact"):
        checkpoint(run, 4, 150 * 1024)
    assert (saving.complete_steps(run), latest_step(run)) == ([2], 2)
    assert saving.choose_resume_step(run) == []
    (small_disk / "other").unlink()
    checkpoint(run, 4, 150 * 1024)
    assert (saving.complete_steps(run), latest_step(run)) == ([2, 4], 4)
