"""Save checkpoints so that a crash, a full disk or a damaged file costs at most the newest one.

RUN/global_step_N/complete.json          sizes and checksums of its files, written last (convrec.checkpoints.manifest)
RUN/global_step_N/damaged.json           the former complete.json, after a resumed run found that a checksum differs
RUN/unfinished_step_N                    global_step_N is being written, or was when the run was killed
RUN/latest_checkpointed_iteration.txt    the newest complete checkpoint (verl's file name)
RUN/best.json                            {"step": N, "val/ndcg": x} (judge: val/score, SFT: val/loss): the best saved
                                         step; "validation_set" is the digest of its validation data
RUN/stop, RUN/stop.<job>                 created by hand, by the first signal, or by `convrec submit`: save, then stop

If RUN/global_step_N is a symbolic link, pruning removes only the link: nothing outside RUN is deleted.
"""

import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError, one_line
from convrec.base.files import find_full_disk, list_files, names_full_disk, read_json_object, write_json, write_text
from convrec.checkpoints import manifest
from convrec.checkpoints.files import check_shards, locate_shards, read_json_or_empty, read_world_size
from convrec.checkpoints.plain_load import check_plain
from convrec.runs import supervisor
from convrec.runs.folder import (
    LATEST,
    MANIFEST,
    SUBMISSION_VARIABLE,
    latest_step,
    parse_step,
    read_config,
    setting,
    tracked_step,
)

BEST = "best.json"
DAMAGED = "damaged.json"
VALIDATION_SET = "validation_set"  # in best.json
VALIDATION_FILES = "data.val_files"  # in the config of a run
STOP = "stop"
# The first one that a run logs counts (a judge has no NDCG, SFT only a loss). 1: higher is better, -1: lower is.
VALIDATION_METRICS = {"val/ndcg": 1, "val/score": 1, "val/loss": -1}
SHARED_SECONDS = 90.0  # NFS shows another node's new files up to 60 s later (acdirmax)


class StopRequested(Exception):
    """The run was asked to stop: it has written its checkpoint and ends.

    Args:
        step: the last step that was trained.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped on request after step {step}")


def save_on_signals(run_folder: Path) -> None:
    """From now on, let the first signal request a stop after the current step: the run is training."""
    supervisor.note(stop=str(run_folder / STOP), stop_of_job=str(run_folder / _job_stop_file()))


def consume_stop_request(run_folder: Path) -> bool:
    """Return whether somebody asked this run to stop, and remove the files that say so."""
    requests = [file for file in (run_folder / STOP, run_folder / _job_stop_file()) if file.exists()]
    for file in requests:
        file.unlink(missing_ok=True)
    return bool(requests)


def clear_stop_requests(run_folder: Path) -> None:
    """Remove stop requests that arrived too late for earlier starts. The caller must hold the run folder."""
    (run_folder / STOP).unlink(missing_ok=True)
    for file in run_folder.glob(f"{STOP}.*-[0-9]*"):  # ids of `convrec submit` and `convrec matrix`
        if file.name != _job_stop_file():
            file.unlink(missing_ok=True)


def _job_stop_file() -> str:
    return f"{STOP}.{os.environ.get(SUBMISSION_VARIABLE)}"


def step_folder(run_folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint, RUN/global_step_N."""
    return run_folder / f"global_step_{step}"


def save(run_folder: Path, step: int, write: Callable[[], None], keep: int | None = None) -> None:
    """Write a checkpoint, mark it complete, then prune old ones.

    No older checkpoint is removed before the new one is complete.

    Args:
        run_folder: the folder of the run.
        step: the step to save.
        write: writes RUN/global_step_N and the tracker.
        keep: how many of the newest checkpoints stay, as in `prune`.

    Raises:
        RuntimeError: the checkpoint cannot be written. Its files are removed; the last complete checkpoint and the
            tracker are unchanged.
    """
    folder = step_folder(run_folder, step)
    last = latest_step(run_folder)
    if last == step:  # the run went back to an earlier step
        last = max((earlier for earlier in complete_steps(run_folder) if earlier < step), default=0)
    fallback = f"the checkpoint of step {last} is intact" if last else "there is no earlier checkpoint"
    needed = sum(manifest.measure_files(step_folder(run_folder, last)).values()) if last else 0
    run_folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(run_folder).free
    if free < needed:
        raise RuntimeError(
            f"{run_folder}: {free / 2**30:.2f} GiB free, a checkpoint needs {needed / 2**30:.2f} GiB: step {step} is "
            f"not saved, {fallback}. Make room (SAVE_KEEP limits the number of checkpoints); the same command "
            "resumes."
        )
    # A folder of this step is incomplete, or the run went back to an earlier step: this save replaces it.
    if best_step(run_folder) == step:
        (run_folder / BEST).unlink()
    unfinished = _unfinished_file(run_folder, step)
    try:
        unfinished.touch()
        _remove(folder)
        write()
        _drop_attention(folder)
        manifest.write(folder)
        unfinished.unlink()
    except Exception as error:
        reason = one_line(error)
        if not names_full_disk(reason) and (full := find_full_disk(run_folder)):
            reason += f": {full}"  # torch.save says "unexpected pos 576 vs 534"
        _undo_save(run_folder, step, last)
        raise RuntimeError(
            f"{folder} could not be written ({reason}); {fallback}. Fix the cause; the same command resumes"
        ) from error
    prune(run_folder, keep)


def _undo_save(run_folder: Path, step: int, last: int) -> None:
    """Remove a step's incomplete files, and point the tracker to the last complete step (0: there is none)."""
    shutil.rmtree(step_folder(run_folder, step), ignore_errors=True)
    _unfinished_file(run_folder, step).unlink(missing_ok=True)
    if last:
        write_tracker(run_folder, last)
    else:
        (run_folder / LATEST).unlink(missing_ok=True)


def _unfinished_file(run_folder: Path, step: int) -> Path:
    """Return the file that exists while a checkpoint is written; without it, a folder without a manifest lost one."""
    return run_folder / f"unfinished_step_{step}"


def _drop_attention(folder: Path) -> None:
    """Remove verl's attn_implementation from the model's config.

    Only this program's processes know `varlen`; transformers refuses to load a model that names it.
    """
    for file in folder.glob("**/huggingface/config.json"):
        config = read_json_object(file)
        if config.pop("attn_implementation", None) is not None:
            write_json(file, config)


def wait_for_shards(folder: Path) -> None:
    """Wait until this node sees every process's shard.

    Raises:
        RuntimeError: a shard is still missing after SHARED_SECONDS.
    """
    deadline = time.monotonic() + SHARED_SECONDS
    while True:
        try:
            return check_shards(folder)
        except UserError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the driver's node does not see every shard in {folder}: SAVE_PATH must be on storage that all "
                    "nodes share"
                ) from error
        time.sleep(1)


def prune(run_folder: Path, keep: int | None) -> None:
    """Remove all complete checkpoints except for the newest `keep` and the best.

    Checkpoints after the tracker's step do not count: the run went back to that step and will overwrite them.

    Args:
        run_folder: the folder of the run.
        keep: how many of the newest checkpoints stay; None and numbers below 1 keep all.
    """
    if keep is None or keep < 1:  # verl's -1 keeps all; as the end of a slice it would keep none
        return
    newest = latest_step(run_folder)
    steps = [step for step in complete_steps(run_folder) if step <= newest]
    best = best_step(run_folder)
    for step in steps[:-keep]:
        if step != best:
            folder = step_folder(run_folder, step)
            if not folder.is_symlink():
                (folder / MANIFEST).unlink()  # a checkpoint that is partly removed must not count as complete
            _remove(folder)


def note_validation(run_folder: Path, step: int, metrics: dict[str, float], keep: int | None = None) -> None:
    """Record the step as the best if it is saved and scored better than the best so far, then prune the former best.

    Args:
        run_folder: the folder of the run.
        step: the step that was validated.
        metrics: its validation metrics; the first of VALIDATION_METRICS among them counts.
        keep: how many of the newest checkpoints stay, as in `prune`.
    """
    metric = next((name for name in VALIDATION_METRICS if name in metrics), None)
    if metric is None or not math.isfinite(metrics[metric]) or step not in complete_steps(run_folder):
        return
    best = _read_best(run_folder)
    digest = _read_validation_set(run_folder)
    data = {VALIDATION_SET: digest} if digest else {}
    # A score of another metric (the run was another recipe's) or on other data is not comparable.
    is_comparable = metric in best and not _has_other_data(best, digest)
    is_better = is_comparable and VALIDATION_METRICS[metric] * (metrics[metric] - best[metric]) > 0
    if best_step(run_folder) is None or not is_comparable or is_better:
        write_json(run_folder / BEST, {"step": step, metric: metrics[metric], **data})
        prune(run_folder, keep)


def best_step(run_folder: Path) -> int | None:
    """Return the step with the best validation score among those that are saved, None if there is none."""
    best = _read_best(run_folder)
    return best["step"] if best and step_folder(run_folder, best["step"]).is_dir() else None


def describe_best(run_folder: Path, step: int) -> str:
    """Return the figure that made a step the best, as " (val/ndcg 0.374)".

    Args:
        run_folder: the folder of the run.
        step: from `best_step`.

    Returns:
        The figure; "" if RUN/best.json has none, or already names another step.
    """
    best = _read_best(run_folder)
    names = [name for name in VALIDATION_METRICS if name in best and best["step"] == step]
    return f" ({names[0]} {best[names[0]]:.3f})" if names else ""


def compare_validation_sets(run_folder: Path, digest: str | None) -> list[str]:
    """Return a warning if the best step was chosen on another validation set than this one.

    Args:
        run_folder: the folder of the run.
        digest: of the current validation files; None if unknown.
    """
    best = _read_best(run_folder)
    if not _has_other_data(best, digest):
        return []
    return [
        f"{run_folder / BEST}: step {best['step']} was the best on another validation set. Its score is not comparable "
        "with scores on this one; the next step that is saved and validated replaces it"
    ]


def _read_best(run_folder: Path) -> dict[str, Any]:
    """Return RUN/best.json, {} if it is missing or damaged: the next validated step is then the best."""
    best = read_json_or_empty(run_folder / BEST)
    is_valid = isinstance(best, dict) and isinstance(best.get("step"), int)
    scores = [best[name] for name in VALIDATION_METRICS if name in best] if is_valid else []
    return best if is_valid and all(isinstance(score, int | float) for score in scores) else {}


def _read_validation_set(run_folder: Path) -> str | None:
    """Return the digest of the validation files in RUN/config.yaml."""
    contents = setting(read_config(run_folder), "run.contents") or {}
    return contents.get(VALIDATION_FILES)


def _has_other_data(best: dict[str, Any], digest: str | None) -> bool:
    """Return whether both validation sets are known and differ."""
    return None not in (best.get(VALIDATION_SET), digest) and best[VALIDATION_SET] != digest


def complete_steps(run_folder: Path) -> list[int]:
    """Return the steps whose checkpoint has all its files in full size, in ascending order."""
    return [step for step, folder in _step_folders(run_folder).items() if manifest.is_complete(folder)]


def choose_resume_step(run_folder: Path) -> list[str]:
    """Point the tracker to the newest checkpoint that can be resumed.

    Returns:
        Warnings about checkpoints that cannot be resumed.

    Raises:
        UserError: checkpoints were completed and none is intact, so the run would restart from step 0 next to them.
            A checkpoint that was being written when the run was killed was never completed.
    """
    tracker = run_folder / LATEST
    tracker_step = tracked_step(run_folder)
    folders = _step_folders(run_folder)
    incomplete = {step for step in folders if _is_incomplete(run_folder, step)}
    none_completed = len(incomplete) == len(folders)
    warnings = [
        f"{folders[step]} is incomplete: the run was killed while writing it. It is ignored and will be overwritten"
        for step in sorted(incomplete)
        if step >= tracker_step
    ]
    if not tracker.exists() and none_completed:
        return warnings
    usable, damage = _find_intact_step(run_folder, tracker_step)
    warnings += damage
    if usable and usable == tracker_step:
        return warnings
    if not usable and not (tracker_step in incomplete and none_completed):
        raise UserError(
            "checkpoint.nothing-to-resume",
            f"{'; '.join([*warnings, str(run_folder)])}: every completed checkpoint is damaged or missing. Restore one "
            f"from a copy, with its {MANIFEST}, or choose another SAVE_PATH; to restart from step 0 here, remove "
            f"{tracker} and the remaining global_step_ folders",
        )
    if tracker_step not in incomplete:
        problem = (
            f"{step_folder(run_folder, tracker_step)} is damaged or missing"
            if tracker_step
            else f"{tracker} is damaged"
        )
        warnings.append(f"{problem}: resuming from step {usable}")
    if usable:
        write_tracker(run_folder, usable)
    else:
        tracker.unlink(missing_ok=True)
    return warnings


def _is_incomplete(run_folder: Path, step: int) -> bool:
    """Return whether the run was killed while it wrote the step's checkpoint, which was therefore never complete.

    A folder without a manifest that was not being written is different: it lost its manifest.
    """
    folder = step_folder(run_folder, step)
    was_complete = (folder / MANIFEST).exists() or (folder / DAMAGED).exists()
    return not was_complete and _unfinished_file(run_folder, step).exists()


def _find_intact_step(run_folder: Path, tracker_step: int) -> tuple[int, list[str]]:
    """Return the step to resume, 0 for none, and a line for each damaged checkpoint that was set aside.

    Args:
        run_folder: the folder of the run.
        tracker_step: the step in the tracker. It is preferred to newer ones: the run went back to it.
    """
    complete = complete_steps(run_folder)
    lines = []
    step = tracker_step if tracker_step in complete else max(complete, default=0)
    while step:
        folder = step_folder(run_folder, step)
        file = manifest.find_damaged_file(folder)
        if file is None:
            break
        lines.append(f"{folder / file} has changed since it was written")
        _set_aside(run_folder, step)
        complete.remove(step)
        step = max(complete, default=0)
    return step, lines


def _set_aside(run_folder: Path, step: int) -> None:
    """Stop counting a damaged checkpoint as complete."""
    folder = step_folder(run_folder, step)
    if best_step(run_folder) == step:
        (run_folder / BEST).unlink()
    if not folder.is_symlink():
        (folder / MANIFEST).rename(folder / DAMAGED)


def check_shards_to_load(run_folder: Path, processes: int) -> list[str]:
    """Check the newest checkpoint before it is loaded.

    Args:
        run_folder: the folder of the run.
        processes: how many processes will load it.

    Returns:
        A line if another number of processes saved it (convrec.checkpoints.reshard).

    Raises:
        UserError: another number of processes saved it with FSDP1, or a file contains more than tensors and plain
            values.
    """
    step = latest_step(run_folder)
    for file in list_files(step_folder(run_folder, step)) if step else ():
        if file.suffix == ".pt":
            check_plain(file)
    folder = locate_shards(step_folder(run_folder, step))
    saved = read_world_size(folder) if step else None
    if saved in (None, processes):
        return []
    if read_json_or_empty(folder / "fsdp_config.json").get("FSDP_version") == 1:
        raise UserError(
            "checkpoint.fsdp1-world-size",
            f"{folder}: {saved} processes saved it with FSDP1, but N_NODES x N_GPUS_PER_NODE is {processes} now. "
            f"Resume with {saved}, or start a new run from it: MODEL_PATH={run_folder} and another SAVE_PATH",
        )
    return [f"{folder}: {saved} processes saved it and {processes} resume it: its shards are redistributed"]


def write_tracker(run_folder: Path, step: int) -> None:
    """Record the step as the newest checkpoint, for verl and for `latest_step`."""
    write_text(run_folder / LATEST, str(step))


def _step_folders(run_folder: Path) -> dict[int, Path]:
    """Return the folders RUN/global_step_N by N, in ascending order."""
    steps = [(parse_step(folder), folder) for folder in run_folder.glob("global_step_*")]
    return dict(sorted((step, folder) for step, folder in steps if step is not None))


def _remove(folder: Path) -> None:
    """Remove a checkpoint; for a symbolic link, only the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)
