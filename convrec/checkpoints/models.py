"""Resolve a model as users name it to a Hugging Face folder or id.

Wherever a model is expected, a run folder stands for one of its checkpoints: the best by validation, or the newest if
no saved step was validated. RUN@best, RUN@last and RUN/global_step_N say which one. Resuming a run is another matter:
it always continues from the newest checkpoint (convrec.checkpoints.saving).

verl writes a checkpoint's Hugging Face form in addition to its shards if `hf_model` is among the saved contents;
otherwise verl's merger writes it once. A LoRA adapter, in a checkpoint or as a PEFT folder, is merged into the weights
of its base model. Merged models are kept in `merged/`, with the fingerprints of their sources: when the weights change,
they are merged again.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from convrec.base.errors import UserError
from convrec.base.files import atomic_write_folder, read_json_object, write_json
from convrec.base.shipped import python_path
from convrec.checkpoints import hub
from convrec.checkpoints.files import (
    SHARDS,
    check_hugging_face,
    check_model_files,
    check_shards,
    fingerprint,
    has_weights,
    locate_shards,
    read_json_or_empty,
    read_weight_files,
)
from convrec.checkpoints.gguf import COMMAND, gguf_file
from convrec.checkpoints.saving import BEST, best_step, describe_best
from convrec.runs.folder import LATEST, MANIFEST, latest_step, parse_step, start_model

CHOICES = ("best", "last")  # RUN@best, RUN@last
ADAPTER = "adapter_config.json"
MADE_FROM = "made_from"  # in merged/: source -> fingerprint, as JSON; with .json it would count as a file of the model


def split_choice(model_path: str | Path) -> tuple[str, str]:
    """Split RUN@best and RUN@last into the folder and the word.

    Args:
        model_path: any path or id of a model.

    Returns:
        The folder, and "best" or "last"; for every other path and id, the text itself and "".
    """
    text = str(model_path)
    folder, _, choice = text.rpartition("@")
    is_choice = choice in CHOICES and not Path(text).expanduser().is_dir() and Path(folder).expanduser().is_dir()
    return (folder, choice) if is_choice else (text, "")


class ChosenStep(NamedTuple):
    """The checkpoint that a run folder stands for.

    Attributes:
        step: 0 if the run has none.
        reason: why this one, for a sentence.
    """

    step: int
    reason: str


def choose_step(run: Path, choice: str = "") -> ChosenStep:
    """Choose the checkpoint that a run folder stands for. If the run still trains, the next call may choose another.

    Args:
        run: the run folder.
        choice: "best": by validation; "last": the newest; "": the best, or the newest if no saved step was
            validated.
    """
    best = None if choice == "last" else best_step(run)
    if best is not None and (run / f"global_step_{best}" / MANIFEST).exists():
        return ChosenStep(best, f"the best by validation{describe_best(run, best)}")
    reason = "the newest" if choice == "last" else "the newest; none is known as the best by validation"
    return ChosenStep(0 if choice == "best" else latest_step(run), reason)


def find_step(model_path: str | Path) -> int | None:
    """Return the step of the checkpoint that a path stands for.

    Args:
        model_path: RUN, RUN@best, RUN@last, RUN/global_step_N or a folder in it.

    Returns:
        The step; 0 for a run folder without such a checkpoint; None for a model that is not of a run.
    """
    text, choice = split_choice(model_path)
    folder = Path(text).expanduser()
    if (folder / LATEST).exists():
        return choose_step(folder, choice).step
    folder = folder.absolute()
    steps = map(parse_step, (folder, *folder.parents))
    return next((step for step in steps if step is not None), None)


def pin_checkpoint(model_path: str | Path) -> str:
    """Replace a run folder by the checkpoint that it stands for now, and print which one.

    A run that still trains may save a better checkpoint at any time. If a model is looked up several times, or by
    several processes, pin it first, so that all get the same one.

    Args:
        model_path: any path or id of a model.

    Returns:
        RUN/global_step_N for a run folder with a checkpoint (also RUN@best, RUN@last); any other path or id as it is.
    """
    text, choice = split_choice(model_path)
    run = Path(text).expanduser()
    if not (run / LATEST).exists() or _holds_model(run):
        return str(model_path)
    step, reason = choose_step(run, choice)
    if not step:
        return str(model_path)
    _print_once(f"{run}: checkpoint of step {step}, {reason}")
    return str(run / f"global_step_{step}")


def _holds_model(folder: Path) -> bool:
    """Return whether a folder is a model itself: Hugging Face's form, or an adapter."""
    return any((folder / name).exists() for name in ("config.json", ADAPTER))


@cache
def _print_once(line: str) -> None:
    """Print a line to stderr. A sweep or a matrix resolves the same run many times."""
    print(line, file=sys.stderr)


def check_model_path(model_path: str | Path, prefix: str = "MODEL_PATH=") -> str:
    """Check a model's path or Hugging Face id.

    Args:
        model_path: a Hugging Face folder or id, a PEFT adapter, a run folder or RUN/global_step_N.
        prefix: the variable or option that errors name.

    Returns:
        The path or id as text, with `~` expanded; @best and @last stay.

    Raises:
        UserError: the folder is missing or damaged, or contains neither a model nor a run.
    """
    text, choice = split_choice(model_path)
    folder = Path(text).expanduser()
    if file := gguf_file(text):
        out = f"models/{file.stem}"
        raise UserError(
            "model.needs-conversion",
            f"{prefix}{text}: a GGUF file. Convert it first with `{COMMAND} {file} {out}`, then give {out}",
        )
    if choice:
        _check_choice(folder, choice, prefix)
    if folder.is_dir():
        check_model_files(folder)
        if not _holds_model(folder) and _find_step_folder(folder, choice) is None:
            inside = sorted(path.parent.name for path in folder.glob("checkpoint-*/config.json"))  # TRL's checkpoints
            hint = f". It contains models: {', '.join(inside)}" if inside else ""
            raise UserError(
                "model.not-a-model-folder",
                f"{prefix}{text}: the folder has neither a config.json (a Hugging Face model) nor a complete "
                f"checkpoint ({LATEST}). Give a model folder, a run folder or a Hugging Face id{hint}",
            )
        return f"{folder}@{choice}" if choice else str(folder)
    _check_step(folder, prefix)
    if not hub.is_id(text):
        raise UserError(
            "model.missing-folder", f"{prefix}{text}: no such folder, and not a Hugging Face id (organisation/name)"
        )
    return text


def _check_choice(run: Path, choice: str, prefix: str) -> None:
    """Raise UserError for a choice among checkpoints where there are none to choose from."""
    if not (run / LATEST).exists():
        raise UserError(
            "model.choice-without-run",
            f"{prefix}{run}@{choice}: {run} is not a run folder with a complete checkpoint. Leave out @{choice}",
        )
    if not choose_step(run, choice).step:
        raise UserError(
            "model.no-best-checkpoint",
            f"{prefix}{run}@{choice}: no checkpoint of this run is known as the best by validation ({BEST}). Give "
            f"{run}@last for the newest one",
        )


def _check_step(missing: Path, prefix: str) -> None:
    """Raise UserError with the available steps if the missing folder belongs to a run that exists."""
    step = next((part for part in (missing, *missing.parents) if parse_step(part) is not None), None)
    if step is None or step.exists() or not step.parent.is_dir():
        return
    numbers = map(parse_step, step.parent.iterdir())
    steps = sorted(number for number in numbers if number is not None)
    available = ", ".join(map(str, steps)) or "none"
    raise UserError(
        "model.missing-step", f"{prefix}{missing}: no such checkpoint in {step.parent}; available steps: {available}"
    )


def run_folder(model_path: str | Path) -> Path | None:
    """Return the folder of the run that a model belongs to, None if it belongs to none.

    Args:
        model_path: RUN, RUN@best, RUN@last, RUN/global_step_N, a folder below it, or any other model.
    """
    folder = Path(split_choice(model_path)[0]).expanduser()
    if not folder.is_dir() or (folder / LATEST).exists():
        return folder if folder.is_dir() else None
    folder = folder.absolute()
    return next((part.parent for part in (folder, *folder.parents) if part.name.startswith("global_step_")), None)


def _find_step_folder(folder: Path, choice: str) -> Path | None:
    """Return the checkpoint that a path names: RUN/global_step_N itself, or the one that a run folder stands for."""
    if folder.name.startswith("global_step_"):
        return folder
    step = choose_step(folder, choice).step
    return folder / f"global_step_{step}" if step else None


def resolve_model(model_path: str | Path, prefix: str = "MODEL_PATH=") -> str:
    """Return the Hugging Face folder or id of a model, merging or downloading it where needed.

    For a run folder, the step that it stands for is printed to stderr. An id with a revision,
    organisation/name@revision, is downloaded and returned as its folder. Merged weights are written next to the
    checkpoint or the adapter, and are used again as long as their sources stay the same.

    Args:
        model_path: a Hugging Face folder or id, a PEFT adapter, a run folder (also RUN@best, RUN@last) or
            RUN/global_step_N.
        prefix: the variable or option that errors name.

    Raises:
        UserError: as `check_model_path`, or a checkpoint is incomplete or cannot be merged.
    """
    return _resolve(pin_checkpoint(check_model_path(model_path, prefix)), prefix, ())


def _resolve(model_path: str | Path, prefix: str, dependents: tuple[Path, ...]) -> str:
    """Resolve a model that is the base of `dependents`: adapters and LoRA runs."""
    text, choice = split_choice(check_model_path(model_path, prefix))
    folder = Path(text)
    if not folder.is_dir():
        return hub.download_revision(text, prefix) if hub.split_revision(text)[1] else text
    if (folder / "config.json").exists():
        return text
    if folder.resolve() in dependents:
        raise UserError(
            "model.circular-base",
            f"{dependents[-1]}: its base model {folder} is itself built on it. Name the model that it was trained from "
            f"in {ADAPTER} (in config.yaml for a run)",
        )
    chain = (*dependents, folder.resolve())
    if (folder / ADAPTER).exists():
        return str(_merge_adapter(folder, folder / "merged", chain))
    step_folder = _find_step_folder(folder, choice)
    assert step_folder is not None, "check_model_path accepts no other folder"
    if not (step_folder / MANIFEST).exists():
        raise UserError(
            "model.incomplete-checkpoint",
            f"{prefix}{step_folder}: no {MANIFEST}: the run was killed while it wrote this checkpoint, or a resumed "
            "run found it damaged. Name another step of the run",
        )
    shards = locate_shards(step_folder)
    saved = shards / "huggingface"
    merged = step_folder / "merged"
    # In verl's Hugging Face form of a LoRA run, weights have the adapter's names, which nothing can load.
    is_lora = (shards / "lora_train_meta.json").exists()
    if has_weights(saved) and not is_lora:
        check_hugging_face(saved)
        return str(saved)
    sources = {"shards": fingerprint(shards, SHARDS) if any(shards.glob(SHARDS[0])) else None}
    if is_lora:
        sources["base"] = _fingerprint_model(start_model(step_folder.parent), chain)
    if not _is_made_from(merged, sources):
        check_shards(shards)
        with _write_model_atomically(merged, sources) as partial:
            _merge_shards(shards, partial, is_lora, step_folder.parent, chain)
    return str(merged)


def _fingerprint_model(model: str | None, dependents: tuple[Path, ...]) -> str | None:
    """Return the fingerprint of a model's folder, the id itself for a Hugging Face id, None for a missing model."""
    if not model:
        return None
    try:
        folder_or_id = _resolve(model, "MODEL_PATH=", dependents)
    except UserError:
        return None
    return fingerprint(Path(folder_or_id)) if Path(folder_or_id).is_dir() else folder_or_id


def _is_made_from(target: Path, sources: Mapping[str, str | None]) -> bool:
    """Return whether `target` was merged from these sources; a source that no longer exists (None) is not compared."""
    if not has_weights(target):
        return False
    recorded = read_json_or_empty(target / MADE_FROM)
    return all(current is None or recorded.get(name) == current for name, current in sources.items())


@contextmanager
def _write_model_atomically(target: Path, sources: Mapping[str, str | None]) -> Iterator[Path]:
    """Yield a folder to write a model into; it becomes `target`, with the fingerprints of its sources.

    Raises:
        UserError: the storage of the adapter or the shards is read-only or full.
    """
    with ExitStack() as stack:
        whole = atomic_write_folder(target, unless=lambda: _is_made_from(target, sources))
        try:
            partial = stack.enter_context(whole)
        except OSError as error:
            raise UserError(
                "model.read-only-storage",
                f"{target}: cannot write the merged model ({error.strerror}). Copy {target.parent} to writable "
                "storage, and give the copy",
            ) from None
        yield partial
        write_json(partial / MADE_FROM, sources)
        if has_weights(target) and not _is_made_from(target, sources):
            print(f"{target}: merged again, because the weights have changed", file=sys.stderr)


def _merge_shards(shards: Path, target: Path, is_lora: bool, run_folder: Path, chain: tuple[Path, ...]) -> None:
    merged = target / "without_adapter" if is_lora else target
    command = ["convrec.checkpoints.plain_load", "merge", "--backend", "fsdp"]
    _run([*command, "--local_dir", str(shards), "--target_dir", str(merged)], merged, shards)
    if is_lora:
        # The frozen base is the run's initial model; unlike the merger's copy, it is not rounded to bf16.
        start = start_model(run_folder)
        use_start = start and (Path(start).is_dir() or not _has_base_weights(merged))
        _add_adapter(merged / "lora_adapter", target, start if use_start else None, chain)
        shutil.rmtree(merged)


def _has_base_weights(folder: Path) -> bool:
    """Return whether the merger also found the base model's weights, which `save_lora_only` omits."""
    index = next(folder.glob("*.index.json"), None)
    if index is not None:
        return bool(read_weight_files(index))
    weights = max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size, default=None)
    adapter = folder / "lora_adapter" / "adapter_model.safetensors"
    return weights is not None and weights.stat().st_size > adapter.stat().st_size


def _merge_adapter(adapter: Path, target: Path, chain: tuple[Path, ...]) -> Path:
    sources = {"adapter": fingerprint(adapter), "base": _fingerprint_model(_find_base(adapter), chain)}
    if not _is_made_from(target, sources):
        with _write_model_atomically(target, sources) as partial:
            _add_adapter(adapter, partial, None, chain)
    return target


def _find_base(adapter: Path) -> str | None:
    """Return the base model that an adapter names, or the merger's output folder that contains the adapter."""
    parent = adapter.parent
    base = read_json_object(adapter / ADAPTER).get("base_model_name_or_path")
    if not isinstance(base, str | None):
        raise UserError(
            "model.invalid-base", f"{adapter / ADAPTER}: base_model_name_or_path={base}: expected a folder or an id"
        )
    return str(parent) if (parent / "config.json").exists() and has_weights(parent) else base


def _add_adapter(adapter: Path, target: Path, base: str | None, chain: tuple[Path, ...]) -> None:
    """Write base + adapter into the folder `target`.

    Args:
        adapter: PEFT's folder.
        target: the folder to write into.
        base: a model's path or id; None for the base that the adapter names.
        chain: the models that are built on this base.
    """
    base = base or _find_base(adapter)
    if not base:
        raise UserError(
            "model.missing-base",
            f"{adapter}: {ADAPTER} has no base_model_name_or_path. Set it to the base model's folder",
        )
    base_folder = _resolve(base, f"{chain[-1]}: its base model ", chain)
    _run(["convrec.checkpoints.lora", base_folder, str(adapter), str(target)], target, adapter)


def _run(command: list[str], target: Path, source: Path) -> None:
    """Run a child process that writes a model into `target` from `source`, which errors name."""
    environment = {**os.environ, "PYTHONPATH": python_path()}
    process = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, env=environment, check=False
    )
    if process.returncode or not has_weights(target):
        last = (process.stderr or process.stdout).strip().splitlines()[-1:] or ["no output"]
        raise UserError(
            "model.failed-merge",
            f"{source}: this checkpoint cannot be merged ({last[0]}). Name another step of the run",
        )
