"""A run's folder: where checkpoints, metrics and the log are.

RUN/global_step_N/      checkpoints (verl's layout), the newest complete one named in latest_checkpointed_iteration.txt
RUN/metrics/0001.jsonl  one file per start of the run, one {"step": N, "data": {name: value}} or several per step
RUN/samples/0001.jsonl  a few validation answers (RL), one {"step", "input", "output", "score"} per line
RUN/config.yaml         the composed settings; `run` in it names the recipe and the algorithm
RUN/starts.jsonl        a line for each start: time, versions, commit (convrec.runs.starts)
RUN/run.log             everything verl, Ray and vLLM print
RUN/running             locked by the process that trains into the folder, which it names; gone when that has ended
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

RUNNING = "running"
# the Ray job's id; a stop file for another start of the run says nothing to this one
SUBMISSION_VARIABLE = "CONVREC_SUBMISSION"
METRICS = "metrics"
# Metrics of a step of RL: logged before its checkpoint, and when it has ended.
RL_TRAINED = "training/global_step"
RL_ENDED = "timing_s/step"
# Metrics of a step of SFT: logged before its checkpoint, and by its validation.
SFT_TRAINED = "train/loss"
VALIDATION_LOSS = "val/loss"
LATEST = "latest_checkpointed_iteration.txt"
MANIFEST = "complete.json"  # of a checkpoint: written last (convrec.checkpoints.manifest)
# in a run's config: the model it starts from
RL_MODEL = "actor_rollout_ref.model.path"
SFT_MODEL = "model.path"
_MODEL_FILES = ("model_world_size_*.pt", "*.safetensors", "pytorch_model*.bin")
_PUT_BACK = "put it back from a copy, or remove it: the run then goes on with the settings that it is given"
_STEP = re.compile(r"global_step_(\d+)")


@contextlib.contextmanager
def hold(run_folder: Path) -> Iterator[list[str]]:
    """Keep every other start out of the run folder, which is made if need be. Yields warnings.

    A lock of the kernel, not a process number in a file: it ends with its process, kill -9 included, and on shared
    storage (NFS, Lustre with `flock`, CephFS) counts on every node, where another node's process cannot be looked up.
    Raises UserError when another process holds it, and when the folder cannot be written.
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
            f"{run_folder}: {holder or 'another process'} trains into this folder: wait for its end, stop it, or "
            "choose another SAVE_PATH"
        ) from None
    except OSError as error:
        raise UserError(f"SAVE_PATH={run_folder}: {error.strerror}: choose a folder that can be written") from error
    with file:
        job = os.environ.get(SUBMISSION_VARIABLE)
        file.write(f"process {os.getpid()} of {socket.gethostname()}{f' (job {job})' if job else ''}\n")
        file.flush()
        try:
            yield warnings
        finally:
            (run_folder / RUNNING).unlink(missing_ok=True)
            if is_new:
                with contextlib.suppress(OSError):  # empty when refused before anything was written
                    run_folder.rmdir()


def locked(path: Path) -> tuple[TextIO, list[str]]:
    """(the file, made and locked as long as it is open; warnings). Raises BlockingIOError where a process has it."""
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise
        except OSError as error:
            warning = f"{path.parent}: no locks on this storage ({error.strerror}): do not start this run twice"
            if left := path.read_text().strip():
                warning += f"; {left} has begun to train into it and did not say that it ended"
            file.truncate(0)
            return file, [warning]
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                return file, []
        file.close()  # its holder ended and removed it meanwhile


def remove_stale_lock(run_folder: Path) -> None:
    """Remove the lock file of a process that was killed; one that a process holds stays."""
    path = run_folder / RUNNING
    with contextlib.suppress(OSError):
        if path.exists():
            file, _ = locked(path)
            with file:
                path.unlink(missing_ok=True)


def parse_step(folder: Path) -> int | None:
    """N of RUN/global_step_N; None for any other name (global_step_4_backup)."""
    match = _STEP.fullmatch(folder.name)
    return int(match[1]) if match else None


def next_metrics_file(run_folder: Path) -> Path:
    """A new file for this start of the run: a resumed run never overwrites what it repeats."""
    folder = run_folder / METRICS
    folder.mkdir(parents=True, exist_ok=True)
    stems = [path.stem for path in folder.glob("[0-9]*.jsonl")]
    number = max((int(stem) for stem in stems if stem.isdecimal()), default=0) + 1  # `0001 (copy)` is somebody's
    return folder / f"{number:04d}.jsonl"


def _metrics_lines(run_folder: Path) -> Iterator[dict[str, Any]]:
    """One dict a line, with "step", in the order of files and lines."""
    for path in sorted((run_folder / METRICS).glob("[0-9]*.jsonl")):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # of a run that was killed while writing, or is
                entry = json.loads(line)
                yield {"step": int(entry["step"]), **entry["data"]}


def read_metrics(run_folder: Path) -> list[dict[str, Any]]:
    """One dict a step in order, with key "step". Steps that a resumed run repeated have the later start's values.

    A step can have several lines: what was known before its checkpoint, training, validation, and the validation a
    resumed run begins with.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for row in _metrics_lines(run_folder):
        by_step.setdefault(row["step"], {}).update(row)
    return [by_step[step] for step in sorted(by_step)]


def lacks_validation(run_folder: Path, step: int, test_freq: int, last_step: int | None) -> bool:
    """Return whether the run ended between the checkpoint of a step and the validation that was due after it.

    Args:
        run_folder: of SFT or RL.
        step: of the newest checkpoint.
        test_freq: steps between validations. Not positive: SFT validates its last step, RL none.
        last_step: of the run; None where epochs decide.
    """
    lines = [row for row in _metrics_lines(run_folder) if row["step"] == step]
    if not lines:
        return False
    newest = lines[-1]
    is_last = step == last_step
    is_due = test_freq > 0 and (is_last or step % test_freq == 0)
    if SFT_TRAINED in newest:
        return is_last or is_due
    return is_due and RL_TRAINED in newest and RL_ENDED not in newest


def tracked_step(run_folder: Path) -> int:
    """The step that verl's tracker names, a moment before the checkpoint has its manifest; 0 when there is none."""
    try:
        return int((run_folder / LATEST).read_text())
    except (FileNotFoundError, ValueError):  # ValueError: cut off by a full disk
        return 0


def latest_step(run_folder: Path) -> int:
    """The newest complete checkpoint's step, 0 when there is none."""
    return max(_steps_with_manifest(run_folder), default=0)


def _steps_with_manifest(run_folder: Path) -> list[int]:
    """Steps with a manifest, up to the tracker's: those after it are of a run that has gone back to an earlier one."""
    named = tracked_step(run_folder)
    folders = run_folder.glob(f"global_step_*/{MANIFEST}") if named else ()
    steps = [parse_step(file.parent) for file in folders]
    return sorted(step for step in steps if step is not None and step <= named)


def saved_steps(run_folder: Path) -> list[int]:
    """Steps that have a model in the run folder, in order. Left out: folders without a manifest (a run was killed while
    saving) and folders whose model was removed to keep only newer ones."""

    def holds_model(step: int) -> bool:
        folder = run_folder / f"global_step_{step}"
        return any(next(folder.rglob(pattern), None) for pattern in _MODEL_FILES)

    return [step for step in _steps_with_manifest(run_folder) if holds_model(step)]


def read_config(run_folder: Path) -> dict[str, Any]:
    """RUN/config.yaml as plain data, references unresolved; {} when the run has none. Raises UserError for another
    file than a run writes."""
    import yaml

    path = run_folder / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable as YAML ({' '.join(str(error).split())}): {_PUT_BACK}") from None
    if not isinstance(config or {}, dict):
        raise UserError(f"{path}: not the settings of a run: {_PUT_BACK}")
    return config or {}


def setting(config: dict[str, Any], key: str) -> Any:
    """The value of a dotted key, "a.b" say; None where any part is missing."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def listed(files: Any) -> list[str]:
    """Of a setting that has a path, several, or null."""
    return [files] if isinstance(files, str) else list(files or ())


def find_recipe(config: dict[str, Any]) -> str:
    """The name of the recipe that wrote this config; "" where it names none."""
    return setting(config, "run.recipe") or ""


def start_model(run_folder: Path) -> str | None:
    """The model that the run started from, step 0 of its curves; None when the run has no config.yaml."""
    config = read_config(run_folder)
    return setting(config, RL_MODEL) or setting(config, SFT_MODEL)
