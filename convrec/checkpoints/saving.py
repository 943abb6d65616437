"""Checkpoints of a run that survive what may happen while they are written.

RUN/global_step_N/complete.json          sizes and checksums of its files, written last (convrec.checkpoints.manifest)
RUN/global_step_N/damaged.json           what complete.json was, where the checksums of a resume found other content
RUN/unfinished_step_N                    global_step_N is being written, or was when the run was killed
RUN/latest_checkpointed_iteration.txt    the newest complete one (verl's name for it)
RUN/best.json                            {"step": N, "val/ndcg": x} (judge: val/score, SFT: val/loss): the best saved;
                                         "validation_set" is the digest of the data that it was validated on
RUN/stop, RUN/stop.<job>                 made by hand, by the first signal, or by `convrec submit`: save, then stop

A RUN/global_step_N that is a link is read, and when its turn comes the link is removed: nothing outside of RUN is.
"""

import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError, one_line
from convrec.base.files import find_full_disk, names_full_disk, read_json_object, write_json, write_text
from convrec.checkpoints import manifest
from convrec.checkpoints.files import check_shards, read_if_whole, shards_folder, world_size
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
# the first that is there (a judge has no NDCG, SFT a loss alone): 1 where more is better, -1 where less is
VALIDATION_METRICS = {"val/ndcg": 1, "val/score": 1, "val/loss": -1}
SHARED_SECONDS = 90.0  # NFS shows another node's new files up to 60 s later (acdirmax)


class StopRequested(Exception):
    """Somebody made RUN/stop: the checkpoint is written, the run ends. step: the last one trained."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped as asked after step {step}")


def save_on_signals(run_folder: Path) -> None:
    """Have the first signal that this process's supervisor gets ask for a stop from now on: steps are trained."""
    supervisor.note(stop=str(run_folder / STOP), stop_of_job=str(run_folder / _stop_of_this_job()))


def take_stops(run_folder: Path) -> bool:
    """Whether this run is asked to stop; the files that ask for it are removed."""
    asked = [file for file in (run_folder / STOP, run_folder / _stop_of_this_job()) if file.exists()]
    for file in asked:
        file.unlink(missing_ok=True)
    return bool(asked)


def forget_stops(run_folder: Path) -> None:
    """Remove what asked earlier starts to stop and came too late for them. For who holds the run folder."""
    (run_folder / STOP).unlink(missing_ok=True)
    for file in run_folder.glob(f"{STOP}.*-[0-9]*"):  # ids of `convrec submit` and `convrec matrix`
        if file.name != _stop_of_this_job():
            file.unlink(missing_ok=True)


def _stop_of_this_job() -> str:
    return f"{STOP}.{os.environ.get(SUBMISSION_VARIABLE)}"


def step_folder(run_folder: Path, step: int) -> Path:
    return run_folder / f"global_step_{step}"


def save(run_folder: Path, step: int, write: Callable[[], None], keep: int | None = None) -> None:
    """Run `write`, which writes RUN/global_step_N and the tracker; then mark it complete and remove what is old.

    Nothing older is removed before the new one is complete. Raises RuntimeError when it cannot be written: then what
    was written of it is removed, and the last complete checkpoint and the tracker are as they were.
    """
    folder = step_folder(run_folder, step)
    last = latest_step(run_folder)
    if last == step:  # of a run that was told to begin before it
        last = max((earlier for earlier in complete_steps(run_folder) if earlier < step), default=0)
    kept = f"the checkpoint of step {last} is intact" if last else "there is no earlier checkpoint"
    needed = sum(manifest.sizes(step_folder(run_folder, last)).values()) if last else 0
    run_folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(run_folder).free
    if free < needed:
        raise RuntimeError(
            f"{run_folder}: {free / 2**30:.2f} GiB free, a checkpoint needs {needed / 2**30:.2f} GiB: step {step} is "
            f"not saved, {kept}. Make room (SAVE_KEEP limits what is kept); the same command resumes."
        )
    # what is there was cut off by an earlier end, or is of a run that has gone back to an earlier step: trained anew
    if best_step(run_folder) == step:
        (run_folder / BEST).unlink()
    unfinished = _unfinished_file(run_folder, step)
    try:
        unfinished.touch()
        _remove(folder)
        write()
        _forget_attention(folder)
        manifest.write(folder)
        unfinished.unlink()
    except Exception as error:
        why = one_line(error)
        if not names_full_disk(why) and (full := find_full_disk(run_folder)):
            why += f": {full}"  # torch.save says "unexpected pos 576 vs 534"
        _undo_save(run_folder, step, last)
        raise RuntimeError(
            f"{folder} could not be written ({why}); {kept}, and the same command resumes when that is fixed"
        ) from error
    prune(run_folder, keep)


def _undo_save(run_folder: Path, step: int, last: int) -> None:
    """Remove what was written of a step, and name the last complete one (0: there is none) as the newest again."""
    shutil.rmtree(step_folder(run_folder, step), ignore_errors=True)
    _unfinished_file(run_folder, step).unlink(missing_ok=True)
    if last:
        write_tracker(run_folder, last)
    else:
        (run_folder / LATEST).unlink(missing_ok=True)


def _unfinished_file(run_folder: Path, step: int) -> Path:
    """The file that is there while the checkpoint is written: without it, one without a manifest was whole once."""
    return run_folder / f"unfinished_step_{step}"


def _forget_attention(folder: Path) -> None:
    """Take verl's attn_implementation out of the model's config: `varlen` is known to this program's processes alone,
    and transformers refuses to load a model that names it."""
    for file in folder.glob("**/huggingface/config.json"):
        config = read_json_object(file)
        if config.pop("attn_implementation", None) is not None:
            write_json(file, config)


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
    """Remove all complete checkpoints but the newest `keep` and the best; None keeps all, and so does what is no count.

    Those after the step of the tracker are of a run that has gone back: they do not count, and are overwritten when it
    gets there.
    """
    if keep is None or keep < 1:  # verl's -1; as the end of a slice it would keep none
        return
    newest = latest_step(run_folder)
    steps = [step for step in complete_steps(run_folder) if step <= newest]
    best = best_step(run_folder)
    for step in steps[:-keep]:
        if step != best:
            folder = step_folder(run_folder, step)
            if not folder.is_symlink():
                (folder / MANIFEST).unlink()  # half removed is not complete
            _remove(folder)


def note_validation(run_folder: Path, step: int, metrics: dict[str, float], keep: int | None = None) -> None:
    """Remember the step when it is saved and validated better than the best so far; the former best may then go."""
    metric = next((name for name in VALIDATION_METRICS if name in metrics), None)
    if metric is None or not math.isfinite(metrics[metric]) or step not in complete_steps(run_folder):
        return
    best = _read_best(run_folder)
    digest = _validation_set(run_folder)
    data = {VALIDATION_SET: digest} if digest else {}
    # a best of another metric (the run was another recipe's), or on other data, cannot be compared with
    is_comparable = metric in best and not _is_of_other_data(best, digest)
    is_better = is_comparable and VALIDATION_METRICS[metric] * (metrics[metric] - best[metric]) > 0
    if best_step(run_folder) is None or not is_comparable or is_better:
        write_json(run_folder / BEST, {"step": step, metric: metrics[metric], **data})
        prune(run_folder, keep)


def best_step(run_folder: Path) -> int | None:
    best = _read_best(run_folder)
    return best["step"] if best and step_folder(run_folder, best["step"]).is_dir() else None


def describe_best(run_folder: Path) -> str:
    """Return the figure that made a step the best, as " (val/ndcg 0.374)"; "" where RUN/best.json has none."""
    best = _read_best(run_folder)
    return next((f" ({name} {best[name]:.3f})" for name in VALIDATION_METRICS if name in best), "")


def compare_validation_sets(run_folder: Path, digest: str | None) -> list[str]:
    """Return a warning where the best step was chosen on other data than this validation set."""
    best = _read_best(run_folder)
    if not _is_of_other_data(best, digest):
        return []
    return [
        f"{run_folder / BEST}: step {best['step']} was the best on another validation set; its score is not compared "
        "with those on this one, and the next step that is saved and validated takes its place"
    ]


def _read_best(run_folder: Path) -> dict[str, Any]:
    """Return RUN/best.json; {} where there is none, or where it is damaged: the best is then chosen again."""
    best = read_if_whole(run_folder / BEST)
    is_sound = isinstance(best, dict) and isinstance(best.get("step"), int)
    scores = [best[name] for name in VALIDATION_METRICS if name in best] if is_sound else []
    return best if is_sound and all(isinstance(score, int | float) for score in scores) else {}


def _validation_set(run_folder: Path) -> str | None:
    """Return the digest of the validation files that RUN/config.yaml notes."""
    contents = setting(read_config(run_folder), "run.contents") or {}
    return contents.get(VALIDATION_FILES)


def _is_of_other_data(best: dict[str, Any], digest: str | None) -> bool:
    """Whether both validation sets are known, and are not the same."""
    return None not in (best.get(VALIDATION_SET), digest) and best[VALIDATION_SET] != digest


def complete_steps(run_folder: Path) -> list[int]:
    """Steps whose checkpoint has every file in the size it was written with, in rising order."""
    return [step for step, folder in _step_folders(run_folder).items() if manifest.is_complete(folder)]


def choose_resume_step(run_folder: Path) -> list[str]:
    """Point the tracker to the newest checkpoint that can be resumed.

    Returns:
        Warnings about checkpoints that cannot be resumed.

    Raises:
        UserError: checkpoints were written and none of them is whole, so that the run would begin again from step 0
            beside them. A checkpoint that was cut off while it was written has never been one.
    """
    tracker = run_folder / LATEST
    named = tracked_step(run_folder)
    folders = _step_folders(run_folder)
    cut_off = {step for step in folders if _is_cut_off(run_folder, step)}
    nothing_was_written = len(cut_off) == len(folders)
    warnings = [
        f"{folders[step]} was cut off while it was written: ignored, and overwritten when the run gets there"
        for step in sorted(cut_off)
        if step >= named
    ]
    if not tracker.exists() and nothing_was_written:
        return warnings
    usable, damage = _newest_whole_step(run_folder, named)
    warnings += damage
    if usable and usable == named:
        return warnings
    if not usable and not (named in cut_off and nothing_was_written):
        raise UserError(
            f"{'; '.join([*warnings, str(run_folder)])}: every checkpoint that was written is damaged or gone. Put one "
            f"back from a copy, with its {MANIFEST}, or choose another SAVE_PATH; to begin again from step 0 here, "
            f"remove {tracker} and what is left of the global_step_ folders"
        )
    if named not in cut_off:
        what = f"{step_folder(run_folder, named)} is damaged or gone" if named else f"{tracker} is damaged"
        warnings.append(f"{what}: resuming from step {usable}")
    if usable:
        write_tracker(run_folder, usable)
    else:
        tracker.unlink(missing_ok=True)
    return warnings


def _is_cut_off(run_folder: Path, step: int) -> bool:
    """Whether the run was killed while it wrote the step's checkpoint, which has therefore never been whole.

    A folder without a manifest that was not being written is another thing: its manifest was lost.
    """
    folder = step_folder(run_folder, step)
    was_whole = (folder / MANIFEST).exists() or (folder / DAMAGED).exists()
    return not was_whole and _unfinished_file(run_folder, step).exists()


def _newest_whole_step(run_folder: Path, named: int) -> tuple[int, list[str]]:
    """Return the step to resume, 0 for none, and a line for each damaged checkpoint that was set aside.

    Args:
        run_folder: of the run.
        named: step that the tracker names. It goes before newer ones: the run has gone back to it.
    """
    complete = complete_steps(run_folder)
    lines = []
    step = named if named in complete else max(complete, default=0)
    while step:
        folder = step_folder(run_folder, step)
        file = manifest.damaged_file(folder)
        if file is None:
            break
        lines.append(f"{folder / file} is not what was written")
        _set_aside(run_folder, step)
        complete.remove(step)
        step = max(complete, default=0)
    return step, lines


def _set_aside(run_folder: Path, step: int) -> None:
    """Let a damaged checkpoint count as one no more."""
    folder = step_folder(run_folder, step)
    if best_step(run_folder) == step:
        (run_folder / BEST).unlink()
    if not folder.is_symlink():
        (folder / MANIFEST).rename(folder / DAMAGED)


def check_shards_to_load(run_folder: Path, processes: int) -> list[str]:
    """What is said of a run that is resumed by another number of processes (convrec.checkpoints.reshard).

    Raises UserError for FSDP1's shards, which only as many processes as saved them can load, and for a file that holds
    more than tensors and plain values.
    """
    done = latest_step(run_folder)
    for file in sorted(step_folder(run_folder, done).rglob("*.pt") if done else ()):
        check_plain(file)
    folder = shards_folder(step_folder(run_folder, done))
    saved = world_size(folder) if done else None
    if saved in (None, processes):
        return []
    if read_if_whole(folder / "fsdp_config.json").get("FSDP_version") == 1:
        raise UserError(
            f"{folder} was saved by {saved} processes with FSDP1, N_NODES x N_GPUS_PER_NODE are {processes} now: "
            f"resume with {saved}, or start a run of its own from it: MODEL_PATH={run_folder} and another SAVE_PATH"
        )
    return [f"{folder} was saved by {saved} processes and is resumed by {processes}: its shards are cut anew"]


def write_tracker(run_folder: Path, step: int) -> None:
    write_text(run_folder / LATEST, str(step))


def _step_folders(run_folder: Path) -> dict[int, Path]:
    """RUN/global_step_N by N, in rising order."""
    steps = [(parse_step(folder), folder) for folder in run_folder.glob("global_step_*")]
    return dict(sorted((step, folder) for step, folder in steps if step is not None))


def _remove(folder: Path) -> None:
    """A checkpoint; of a link the link alone."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)
