"""A model as users name it -> a Hugging Face folder or id.

Wherever a model is expected, a run folder stands for one of its checkpoints: the best by validation, or the newest if
no saved step was validated. RUN@best, RUN@last and RUN/global_step_N say which one. Resuming a run is another matter:
it always continues from the newest checkpoint (convrec.checkpoints.saving).

A checkpoint of ours becomes Hugging Face form by itself: verl writes that form beside its shards
when `hf_model` is among the saved contents, else verl's own merger makes it once. LoRA, in a checkpoint of ours or as a
PEFT adapter's folder, is put into the weights of its base. What is merged is kept in `merged/`, with a note of what it
was made from: other weights in the same folder are merged anew.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from convrec.base.errors import UserError
from convrec.base.files import folder_written_whole, read_json_object, write_json
from convrec.base.shipped import python_path
from convrec.checkpoints import hub
from convrec.checkpoints.files import (
    SHARDS,
    check_hugging_face,
    check_model_files,
    check_shards,
    fingerprint,
    has_weights,
    read_if_whole,
    shards_folder,
    weight_files,
)
from convrec.checkpoints.gguf import COMMAND, gguf_file
from convrec.checkpoints.saving import BEST, best_step, describe_best
from convrec.runs.folder import LATEST, MANIFEST, latest_step, parse_step, start_model

CHOICES = ("best", "last")  # RUN@best, RUN@last
ADAPTER = "adapter_config.json"
MADE_FROM = "made_from"  # in merged/: what -> fingerprint, as JSON; no .json, which would be part of the model's own


def split_choice(model_path: str | Path) -> tuple[str, str]:
    """Split RUN@best and RUN@last into the folder and the word; the word is "" for every other path and id."""
    text = str(model_path)
    folder, _, choice = text.rpartition("@")
    is_choice = choice in CHOICES and not Path(text).expanduser().is_dir() and Path(folder).expanduser().is_dir()
    return (folder, choice) if is_choice else (text, "")


def choose_step(run: Path, choice: str = "") -> int:
    """Return the step of the checkpoint that a run folder stands for; 0 where it has none.

    Args:
        run: the run folder.
        choice: "best": by validation; "last": the newest; "": the best, or the newest if no saved step was
            validated.
    """
    best = None if choice == "last" else best_step(run)
    if best is not None and (run / f"global_step_{best}" / MANIFEST).exists():
        return best
    return 0 if choice == "best" else latest_step(run)


def find_step(model_path: str | Path) -> int | None:
    """Return the step of the checkpoint that a path stands for; None for a model that is not of a run.

    Args:
        model_path: RUN, RUN@best, RUN@last, RUN/global_step_N or a folder in it.
    """
    text, choice = split_choice(model_path)
    folder = Path(text).expanduser()
    if (folder / LATEST).exists():
        return choose_step(folder, choice)
    folder = folder.absolute()
    steps = map(parse_step, (folder, *folder.parents))
    return next((step for step in steps if step is not None), None)


def print_chosen_step(model_path: str | Path) -> None:
    """Print which checkpoint a run folder stands for; nothing for a model that names its step or is not of a run."""
    text, choice = split_choice(model_path)
    run = Path(text).expanduser()
    if not (run / LATEST).exists():
        return
    step = choose_step(run, choice)
    if choice == "last":
        reason = "the newest"
    elif step == best_step(run):
        reason = f"the best by validation{describe_best(run)}"
    else:
        reason = "the newest; none is known as the best by validation"
    _print_once(f"{run}: checkpoint of step {step}, {reason}")


@cache
def _print_once(line: str) -> None:
    """Print a line to stderr. A sweep or a matrix resolves the same run many times."""
    print(line, file=sys.stderr)


def check_model_path(model_path: str | Path, given_as: str = "MODEL_PATH=") -> str:
    """The path or Hugging Face id as text; given_as: the variable or option that errors name.

    Raises UserError for a folder that is missing, damaged, or holds neither a model nor a run.
    """
    text, choice = split_choice(model_path)
    folder = Path(text).expanduser()
    if file := gguf_file(text):
        out = f"models/{file.stem}"
        raise UserError(f"{given_as}{text}: GGUF; convert it first, with `{COMMAND} {file} {out}`, and give {out}")
    if choice:
        _check_choice(folder, choice, given_as)
    if folder.is_dir():
        check_model_files(folder)
        holds_model = any((folder / name).exists() for name in ("config.json", ADAPTER))
        if not holds_model and _step_folder(folder, choice) is None:
            inside = sorted(path.parent.name for path in folder.glob("checkpoint-*/config.json"))  # of TRL
            raise UserError(
                f"{given_as}{text}: the folder has neither a config.json (a Hugging Face model) nor a complete "
                f"checkpoint ({LATEST}); give a model folder, a run folder or a Hugging Face id"
                + (f". There are models in it: {', '.join(inside)}" if inside else "")
            )
        return f"{folder}@{choice}" if choice else str(folder)
    _check_step(folder, given_as)
    if not hub.is_id(text):
        raise UserError(f"{given_as}{text}: no such folder, and not a Hugging Face id (organisation/name)")
    return text


def _check_choice(run: Path, choice: str, given_as: str) -> None:
    """Raise UserError for a choice among checkpoints where there are none to choose from."""
    if not (run / LATEST).exists():
        raise UserError(
            "model.choice-without-run",
            f"{given_as}{run}@{choice}: {run} is not a run folder with a complete checkpoint. Leave out @{choice}.",
        )
    if not choose_step(run, choice):
        raise UserError(
            "model.no-best-checkpoint",
            f"{given_as}{run}@{choice}: no checkpoint of this run is known as the best by validation ({BEST}). Give "
            f"{run}@last for the newest one.",
        )


def _check_step(missing: Path, given_as: str) -> None:
    """Raise UserError, with the steps that are there, for a folder that is missing in a run that exists."""
    step = next((part for part in (missing, *missing.parents) if parse_step(part) is not None), None)
    if step is None or step.exists() or not step.parent.is_dir():
        return
    numbers = map(parse_step, step.parent.iterdir())
    steps = sorted(number for number in numbers if number is not None)
    there = f"steps {', '.join(map(str, steps))} are there" if steps else "no step is there"
    raise UserError(f"{given_as}{missing}: no such checkpoint in {step.parent}; {there}")


def run_folder(model_path: str | Path) -> Path | None:
    """The run that a model is of: RUN itself, RUN/global_step_N or a folder in it; None for any other model."""
    folder = Path(split_choice(model_path)[0]).expanduser()
    if not folder.is_dir() or (folder / LATEST).exists():
        return folder if folder.is_dir() else None
    folder = folder.absolute()
    return next((part.parent for part in (folder, *folder.parents) if part.name.startswith("global_step_")), None)


def _step_folder(folder: Path, choice: str) -> Path | None:
    """The checkpoint that a path means: RUN/global_step_N itself, or the one that a run folder stands for."""
    if folder.name.startswith("global_step_"):
        return folder
    step = choose_step(folder, choice)
    return folder / f"global_step_{step}" if step else None


def resolve_model(model_path: str | Path, given_as: str = "MODEL_PATH=") -> str:
    """A Hugging Face folder or id for any of: id, Hugging Face folder, PEFT adapter, run folder, RUN/global_step_N.

    For a run folder, the step that it stands for is printed to stderr. An id with a revision,
    organisation/name@revision, is downloaded, and becomes its folder.

    Raises UserError as `check_model_path` does, and when a checkpoint is half written or cannot be merged.
    """
    folder_or_id = _resolve(model_path, given_as, ())
    print_chosen_step(model_path)
    return folder_or_id


def _resolve(model_path: str | Path, given_as: str, above: tuple[Path, ...]) -> str:
    """As `resolve_model`; `above` are the adapters and LoRA runs that this model is the base of."""
    text, choice = split_choice(check_model_path(model_path, given_as))
    folder = Path(text)
    if not folder.is_dir():
        return hub.download_revision(text, given_as) if hub.split_revision(text)[1] else text
    if (folder / "config.json").exists():
        return text
    if folder.resolve() in above:
        raise UserError(
            f"{above[-1]}: its base model is {folder}, which is built on it: write the model that it was trained from "
            f"into {ADAPTER} (of a run: into config.yaml)"
        )
    chain = (*above, folder.resolve())
    if (folder / ADAPTER).exists():
        return str(_merge_adapter(folder, folder / "merged", chain))
    step_folder = _step_folder(folder, choice)
    assert step_folder is not None  # check_model_path
    if not (step_folder / MANIFEST).exists():
        raise UserError(
            f"{given_as}{step_folder}: no {MANIFEST}: it was cut off while it was written, or found damaged by a "
            "resume; name another step of the run"
        )
    shards = shards_folder(step_folder)
    saved = shards / "huggingface"
    merged = step_folder / "merged"
    # verl's Hugging Face form of a LoRA run has the adapter's names in it, which nothing loads
    is_lora = (shards / "lora_train_meta.json").exists()
    if has_weights(saved) and not is_lora:
        check_hugging_face(saved)
        return str(saved)
    sources = {"shards": fingerprint(shards, SHARDS) if any(shards.glob(SHARDS[0])) else None}
    if is_lora:
        sources["base"] = _fingerprint_model(start_model(step_folder.parent), chain)
    if not _is_made_from(merged, sources):
        check_shards(shards)
        with _model_written_whole(merged, sources) as partial:
            _merge_shards(shards, partial, is_lora, step_folder.parent, chain)
    return str(merged)


def _fingerprint_model(model: str | None, above: tuple[Path, ...]) -> str | None:
    """Return the digest of a model's contents; of a Hugging Face id the id, and None where there is no such model."""
    if not model:
        return None
    try:
        folder_or_id = _resolve(model, "MODEL_PATH=", above)
    except UserError:
        return None
    return fingerprint(Path(folder_or_id)) if Path(folder_or_id).is_dir() else folder_or_id


def _is_made_from(target: Path, sources: Mapping[str, str | None]) -> bool:
    """Whether `target` is the merger of these; of a source that is gone (None) it is all there is left."""
    if not has_weights(target):
        return False
    noted = read_if_whole(target / MADE_FROM)
    return all(now is None or noted.get(name) == now for name, now in sources.items())


@contextmanager
def _model_written_whole(target: Path, sources: Mapping[str, str | None]) -> Iterator[Path]:
    """The folder to write a model into; `target` becomes it, with the note of what it was made from.

    Raises UserError where nothing can be written beside the adapter or the shards.
    """
    with ExitStack() as stack:
        whole = folder_written_whole(target, unless=lambda: _is_made_from(target, sources))
        try:
            partial = stack.enter_context(whole)
        except OSError as error:
            raise UserError(
                f"{target}: the merged model is kept there, which cannot be written ({error.strerror}): copy "
                f"{target.parent} to storage that can, and give the copy"
            ) from None
        yield partial
        write_json(partial / MADE_FROM, sources)
        if has_weights(target) and not _is_made_from(target, sources):
            print(f"{target}: not made from the weights that are there now, made anew", file=sys.stderr)


def _merge_shards(shards: Path, target: Path, is_lora: bool, run_folder: Path, chain: tuple[Path, ...]) -> None:
    merged = target / "without_adapter" if is_lora else target
    command = ["convrec.checkpoints.plain_load", "merge", "--backend", "fsdp"]
    _run([*command, "--local_dir", str(shards), "--target_dir", str(merged)], merged, shards)
    if is_lora:
        # the frozen base is the model the run started from, and unlike the merger's copy not rounded to bf16
        start = start_model(run_folder)
        use_start = start and (Path(start).is_dir() or not _is_whole(merged))
        _add_adapter(merged / "lora_adapter", target, start if use_start else None, chain)
        shutil.rmtree(merged)


def _is_whole(folder: Path) -> bool:
    """Whether the merger found the base's weights too; `save_lora_only` leaves them out."""
    index = next(folder.glob("*.index.json"), None)
    if index is not None:
        return bool(weight_files(index))
    weights = max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size, default=None)
    adapter = folder / "lora_adapter" / "adapter_model.safetensors"
    return weights is not None and weights.stat().st_size > adapter.stat().st_size


def _merge_adapter(adapter: Path, target: Path, chain: tuple[Path, ...]) -> Path:
    sources = {"adapter": fingerprint(adapter), "base": _fingerprint_model(_find_base(adapter), chain)}
    if not _is_made_from(target, sources):
        with _model_written_whole(target, sources) as partial:
            _add_adapter(adapter, partial, None, chain)
    return target


def _find_base(adapter: Path) -> str | None:
    """The base that an adapter names, or the folder above a merged one."""
    above = adapter.parent
    named = read_json_object(adapter / ADAPTER).get("base_model_name_or_path")
    if not isinstance(named, str | None):
        raise UserError(f"{adapter / ADAPTER}: base_model_name_or_path: expected a folder or an id, it is {named}")
    return str(above) if (above / "config.json").exists() and has_weights(above) else named


def _add_adapter(adapter: Path, target: Path, base: str | None, chain: tuple[Path, ...]) -> None:
    """Base + adapter, written into the folder `target`; base None: the adapter's own. chain: what is built on it."""
    base = base or _find_base(adapter)
    if not base:
        raise UserError(f"{adapter}: {ADAPTER} names no base_model_name_or_path: write the base model's folder there")
    base_folder = _resolve(base, f"{chain[-1]}: its base model ", chain)
    _run(["convrec.checkpoints.lora", base_folder, str(adapter), str(target)], target, adapter)


def _run(command: list[str], target: Path, what: Path) -> None:
    """A child that writes a model into `target` from `what`, which errors name."""
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode or not has_weights(target):
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise UserError(f"{what}: this checkpoint cannot be merged ({last[0]}); name another step of the run")
