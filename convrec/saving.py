"""Checkpoints of a Rank-GRPO run that survive what may happen while they are written.

RUN/global_step_N/complete.json          sizes of its files, written last: what is cut off or damaged is seen
RUN/latest_checkpointed_iteration.txt    the newest complete one (verl's name for it)
RUN/best.json                            {"step": N, "val/ndcg": x} (judges: "val/score"): the best validated one saved
RUN/stop, RUN/stop.<job>                 made by hand, or by `recipes.submit` on Ctrl-C: save, then stop
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from convrec.checkpoint_files import check_shards
from convrec.errors import UserError
from convrec.runs import LATEST, latest_step

MANIFEST = "complete.json"
BEST = "best.json"
STOP = "stop"
# the Ray job's id: a stop file for another start of the run says nothing to this one
SUBMISSION_VARIABLE = "CONVREC_SUBMISSION"
VALIDATION_METRICS = ("val/ndcg", "val/score")  # the first that is there: a judge has no NDCG
SHARED_SECONDS = 90.0  # NFS shows another node's new files up to 60 s later (acdirmax)
READERS = {"merged", "merged.partial"}  # what `convrec.checkpoints` adds to a checkpoint later


class StopRequested(Exception):
    """Somebody made RUN/stop: the checkpoint is written, the run ends. `step` is the last one trained."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped as asked after step {step}")
        self.step = step


def stop_files(run_folder: Path) -> list[Path]:
    """The files whose existence asks this run to stop."""
    job = os.environ.get(SUBMISSION_VARIABLE)
    return [run_folder / STOP] + ([run_folder / f"{STOP}.{job}"] if job else [])


def step_folder(run_folder: Path, step: int) -> Path:
    return run_folder / f"global_step_{step}"


def save(run_folder: Path, step: int, write: Callable[[], None], keep: int | None = None) -> None:
    """Run `write`, which writes RUN/global_step_N and the tracker; then mark it complete and remove what is old.

    Nothing older is removed before the new one is complete. Raises RuntimeError when it cannot be written: then what
    was written of it is removed, and the last complete checkpoint and the tracker are as they were.
    """
    folder, last = step_folder(run_folder, step), latest_step(run_folder)
    kept = f"the checkpoint of step {last} is intact" if last else "there is no earlier checkpoint"
    needed = sum(_sizes(step_folder(run_folder, last)).values()) if last else 0
    run_folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(run_folder).free
    if free < needed:
        raise RuntimeError(
            f"{run_folder}: {free / 2**30:.2f} GiB free, a checkpoint needs {needed / 2**30:.2f} GiB: step {step} is "
            f"not saved, {kept}. Make room (SAVE_KEEP limits what is kept); the same command resumes."
        )
    shutil.rmtree(folder, ignore_errors=True)  # cut off by an earlier end, perhaps with another number of processes
    try:
        write()
        _write_json(folder / MANIFEST, _sizes(folder))
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        if last:
            write_tracker(run_folder, last)
        else:
            (run_folder / LATEST).unlink(missing_ok=True)
        reason = str(getattr(error, "cause", None) or error).strip().splitlines()[-1:] or [type(error).__name__]
        raise RuntimeError(
            f"{folder} could not be written ({reason[0]}); {kept}, and the same command resumes when that is mended"
        ) from error
    prune(run_folder, keep)


def wait_for_shards(folder: Path) -> None:
    """Return when this node sees every process's shard; RuntimeError when it does not within SHARED_SECONDS."""
    deadline = time.monotonic() + SHARED_SECONDS
    while True:
        try:
            return check_shards(folder)
        except UserError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"not every shard in {folder} is seen by the driver's node: SAVE_PATH must be one storage that all "
                    "nodes share"
                ) from error
        time.sleep(1)


def prune(run_folder: Path, keep: int | None) -> None:
    """Remove all complete checkpoints but the newest `keep` and the best; None keeps all."""
    if keep is None:
        return
    steps = complete_steps(run_folder)
    best = best_step(run_folder)
    for step in steps[:-keep]:
        if step != best:
            folder = step_folder(run_folder, step)
            (folder / MANIFEST).unlink()  # half removed is not complete
            shutil.rmtree(folder)


def note_validation(run_folder: Path, step: int, metrics: dict[str, float], keep: int | None = None) -> None:
    """Remember the step when it is saved and validated better than the best so far; the former best may then go."""
    metric = next((name for name in VALIDATION_METRICS if name in metrics), None)
    if metric is None or step not in complete_steps(run_folder):
        return
    best = _read_json(run_folder / BEST)
    if best_step(run_folder) is None or metrics[metric] > best[metric]:
        _write_json(run_folder / BEST, {"step": step, metric: metrics[metric]})
        prune(run_folder, keep)


def best_step(run_folder: Path) -> int | None:
    best = _read_json(run_folder / BEST)
    return best["step"] if best and step_folder(run_folder, best["step"]).is_dir() else None


def complete_steps(run_folder: Path) -> list[int]:
    """Steps whose checkpoint has every file in the size it was written with, in rising order."""
    folders = run_folder.glob("global_step_[0-9]*")
    return sorted(int(folder.name.rsplit("_", 1)[1]) for folder in folders if _is_complete(folder))


def choose_resume_step(run_folder: Path) -> list[str]:
    """Point the tracker to the newest checkpoint that can be resumed. Returns warnings about those that cannot.

    A checkpoint that the tracker names and that has no manifest is trusted: verl's SFT trainer writes none.
    """
    if not run_folder.is_dir():
        return []
    named = latest_step(run_folder)
    complete = complete_steps(run_folder)
    warnings = []
    for folder in sorted(run_folder.glob("global_step_[0-9]*")):
        step = int(folder.name.rsplit("_", 1)[1])
        if step > named and step not in complete:
            warnings.append(
                f"{folder} was cut off while it was written: ignored, and overwritten when the run gets there"
            )
    folder = step_folder(run_folder, named)
    tracker = run_folder / LATEST
    if not tracker.exists() and not complete:
        return warnings
    if named in complete or (named and folder.is_dir() and not (folder / MANIFEST).exists() and any(folder.iterdir())):
        return warnings
    usable = complete[-1] if complete else 0
    then = f"resuming from step {usable}" if usable else "no other is complete: starting anew"
    what = f"{folder} is damaged or gone" if named else f"{tracker} is damaged"
    warnings.append(f"{what}: {then}")
    if usable:
        write_tracker(run_folder, usable)
    else:
        tracker.unlink(missing_ok=True)
    return warnings


def write_tracker(run_folder: Path, step: int) -> None:
    partial = run_folder / (LATEST + ".partial")
    partial.write_text(str(step))
    partial.replace(run_folder / LATEST)


def _is_complete(folder: Path) -> bool:
    manifest = _read_json(folder / MANIFEST)
    sizes = _sizes(folder) if manifest else {}
    return bool(manifest) and all(sizes.get(name) == size for name, size in manifest.items())


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file below, by relative path; what readers add later does not count."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST and not READERS & set(path.relative_to(folder).parts)
    }


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def _write_json(path: Path, value: dict) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(path)
