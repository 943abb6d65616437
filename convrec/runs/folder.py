"""The folder of a run: checkpoints, metrics and the log.

RUN/global_step_N/      checkpoints (verl's layout); latest_checkpointed_iteration.txt names the newest complete one
RUN/metrics/0001.jsonl  one file per start of the run, with lines {"step": N, "data": {name: value}}, several per step
RUN/samples/0001.jsonl  some validation answers (RL), with lines {"step", "input", "output", "score"}
RUN/config.yaml         the composed settings; `run` names the recipe and the algorithm
RUN/starts.jsonl        a line per start: time, versions, commit (convrec.runs.starts)
RUN/run.log             everything that verl, Ray and vLLM print
RUN/running             names and is locked by the process that trains into the folder; removed when that ends
"""

import contextlib
import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from convrec.base.errors import UserError
from convrec.base.files import list_files

RUNNING = "running"
# The id of the Ray job; stop files for other starts of the run do not concern this one.
SUBMISSION_VARIABLE = "CONVREC_SUBMISSION"
METRICS = "metrics"
# Metrics of an RL step: logged before its checkpoint, and at its end.
RL_TRAINED = "training/global_step"
RL_ENDED = "timing_s/step"
# Metrics of an SFT step: logged before its checkpoint, and by its validation.
SFT_TRAINED = "train/loss"
VALIDATION_LOSS = "val/loss"
LATEST = "latest_checkpointed_iteration.txt"
MANIFEST = "complete.json"  # written last in a checkpoint (convrec.checkpoints.manifest)
# The key of the initial model in the config of a run.
RL_MODEL = "actor_rollout_ref.model.path"
SFT_MODEL = "model.path"
_MODEL_FILES = ("model_world_size_*.pt", "*.safetensors", "pytorch_model*.bin")
_PUT_BACK = "Restore it from a copy, or remove it: the run then continues with its current settings"
_STEP = re.compile(r"global_step_(\d+)")


@contextlib.contextmanager
def hold(run_folder: Path) -> Iterator[list[str]]:
    """Lock the run folder against other starts; it is created if it does not exist.

    A kernel lock, unlike a process id in a file, ends with its process, even after kill -9, and on shared storage (NFS,
    Lustre with `flock`, CephFS) is valid on every node, where other nodes' processes cannot be looked up.

    Yields:
        Warnings.

    Raises:
        UserError: another process holds the lock, or the folder cannot be written.
    """
    try:
        is_new = not run_folder.exists()
        run_folder.mkdir(parents=True, exist_ok=True)
        file, warnings = locked(run_folder / RUNNING)
    except BlockingIOError:
        holder = ""
        with contextlib.suppress(OSError):
            holder = (run_folder / RUNNING).read_text().strip()
        raise UserError(
            "run.folder-in-use",
            f"{run_folder}: {holder or 'another process'} trains into this folder. Wait until it ends, stop it, or "
            "choose another SAVE_PATH",
        ) from None
    except OSError as error:
        raise UserError(
            "run.unwritable-folder", f"SAVE_PATH={run_folder}: {error.strerror}. Choose a writable folder"
        ) from error
    with file:
        job = os.environ.get(SUBMISSION_VARIABLE)
        file.write(f"process {os.getpid()} of {socket.gethostname()}{f' (job {job})' if job else ''}\n")
        file.flush()
        try:
            yield warnings
        finally:
            (run_folder / RUNNING).unlink(missing_ok=True)
            if is_new:
                with contextlib.suppress(OSError):  # the folder is empty if the run was refused
                    run_folder.rmdir()


def locked(path: Path) -> tuple[TextIO, list[str]]:
    """Create and open a file, and lock it as long as it is open.

    Returns:
        The file, and warnings.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise
        except OSError as error:
            warning = f"{path.parent}: this storage has no locks ({error.strerror}): do not start this run twice"
            if holder := path.read_text().strip():
                warning += f"; {holder} started to train into it and may still be running"
            file.truncate(0)
            return file, [warning]
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                return file, []
        file.close()  # the previous holder has removed the file in the meantime


def remove_stale_lock(run_folder: Path) -> None:
    """Remove the lock file of a killed process; a file that a process still locks stays."""
    path = run_folder / RUNNING
    with contextlib.suppress(OSError):
        if path.exists():
            file, _ = locked(path)
            with file:
                path.unlink(missing_ok=True)


def parse_step(folder: Path) -> int | None:
    """Parse the step in the name of a checkpoint's folder.

    Returns:
        N for RUN/global_step_N, None for any other name (global_step_4_backup).
    """
    match = _STEP.fullmatch(folder.name)
    return int(match[1]) if match else None


def next_metrics_file(run_folder: Path) -> Path:
    """Return a new file for this start of the run, so that a resumed run never overwrites the steps that it repeats."""
    folder = run_folder / METRICS
    folder.mkdir(parents=True, exist_ok=True)
    stems = [path.stem for path in folder.glob("[0-9]*.jsonl")]
    number = max((int(stem) for stem in stems if stem.isdecimal()), default=0) + 1  # ignores `0001 (copy)`
    return folder / f"{number:04d}.jsonl"


def _iter_metrics(run_folder: Path) -> Iterator[dict[str, Any]]:
    """Yield one dict per line, with "step", in the order of files and lines."""
    for path in sorted((run_folder / METRICS).glob("[0-9]*.jsonl")):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # the run was killed while writing, or is writing
                entry = json.loads(line)
                yield {"step": int(entry["step"]), **entry["data"]}


def read_metrics(run_folder: Path) -> list[dict[str, Any]]:
    """Read the metrics of all starts of a run, merged by step.

    A step can have several lines: before its checkpoint, after training, from its validation, and from the validation
    at the beginning of a resumed run. Repeated steps have the values of the later start.

    Returns:
        One dict per step, in order: metric -> value, and "step" -> N. A value that was not a number is None. [] for a
        run without metrics.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for row in _iter_metrics(run_folder):
        by_step.setdefault(row["step"], {}).update(row)
    return [by_step[step] for step in sorted(by_step)]


def lacks_validation(run_folder: Path, step: int, test_freq: int, last_step: int | None) -> bool:
    """Return whether the run ended between a step's checkpoint and the validation that was due after it.

    Args:
        run_folder: the folder of an SFT or RL run.
        step: the step of the newest checkpoint.
        test_freq: steps between validations. 0 or less: SFT validates its last step, RL none.
        last_step: the last step of the run; None if epochs determine it.
    """
    lines = [row for row in _iter_metrics(run_folder) if row["step"] == step]
    if not lines:
        return False
    newest = lines[-1]
    is_last = step == last_step
    is_due = test_freq > 0 and (is_last or step % test_freq == 0)
    if SFT_TRAINED in newest:
        return is_last or is_due
    return is_due and RL_TRAINED in newest and RL_ENDED not in newest


def tracked_step(run_folder: Path) -> int:
    """Return the step in verl's tracker, 0 without one. The tracker may name a step before its manifest is written."""
    try:
        return int((run_folder / LATEST).read_text())
    except (FileNotFoundError, ValueError):  # ValueError: truncated by a full disk
        return 0


def latest_step(run_folder: Path) -> int:
    """Return the step of the newest complete checkpoint, 0 if there is none."""
    return max(_list_steps_with_manifest(run_folder), default=0)


def _list_steps_with_manifest(run_folder: Path) -> list[int]:
    """Return steps with a manifest, up to the tracker's; later ones remain from before the run went back."""
    last = tracked_step(run_folder)
    files = run_folder.glob(f"global_step_*/{MANIFEST}") if last else ()
    steps = [parse_step(file.parent) for file in files]
    return sorted(step for step in steps if step is not None and step <= last)


def saved_steps(run_folder: Path) -> list[int]:
    """Return the steps that have a model in the run folder, in order.

    Folders without a manifest (the run was killed while saving) and folders whose model was pruned do not count.
    """

    def has_model(step: int) -> bool:
        files = list_files(run_folder / f"global_step_{step}")
        return any(file.match(pattern) for file in files for pattern in _MODEL_FILES)

    return [step for step in _list_steps_with_manifest(run_folder) if has_model(step)]


def read_config(run_folder: Path) -> dict[str, Any]:
    """Read RUN/config.yaml as plain data, with unresolved references; {} if the run has none.

    Raises:
        UserError: the file is not the config of a run.
    """
    import yaml

    path = run_folder / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError("run.damaged-config", f"{path}: not readable as YAML ({reason}). {_PUT_BACK}") from None
    if not isinstance(config or {}, dict):
        raise UserError("run.damaged-config", f"{path}: not the settings of a run. {_PUT_BACK}")
    return config or {}


def setting(config: dict[str, Any], key: str) -> Any:
    """Return the value of a setting in the config of a run.

    Args:
        config: the nested content of RUN/config.yaml.
        key: names joined by dots, such as "a.b".

    Returns:
        The value; None if any part of the key is missing, or if the value is null.
    """
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def listed(files: Any) -> list[str]:
    """Return the files in a setting that is a path, several paths, or null."""
    return [files] if isinstance(files, str) else list(files or ())


def find_recipe(config: dict[str, Any]) -> str:
    """Return the name of the recipe that wrote this config, "" if it names none."""
    return setting(config, "run.recipe") or ""


def start_model(run_folder: Path) -> str | None:
    """Return the run's initial model, which is step 0 of its curves; None if the run has no config.yaml."""
    config = read_config(run_folder)
    return setting(config, RL_MODEL) or setting(config, SFT_MODEL)
