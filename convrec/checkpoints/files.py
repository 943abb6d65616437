"""Whether a checkpoint's files are whole and belong together, and a fingerprint of their contents. Reads headers only.

A copy that ran out of disk, a run killed while saving: they load late or, worse, load and answer nonsense. Everything
here is found before vLLM starts.
"""

import hashlib
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from convrec.base.errors import UserError
from convrec.base.files import file_hash, read_json_object
from convrec.checkpoints.plain_load import check_plain

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
BESIDE_WEIGHTS = ("*.json", "*.model", "*.jinja", "*.txt")  # config, tokenizer, chat template
ANSWERING = (*WEIGHTS, *BESIDE_WEIGHTS)  # whatever changes an answer
SHARDS = ("model_world_size_*.pt", "*.json", "huggingface/*.json")  # what verl's merger reads
_OBJECTS = ("config.json", "generation_config.json", "tokenizer_config.json", "adapter_config.json", "*.index.json")
_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in WEIGHTS) if folder.is_dir() else False


def fingerprint(folder: Path, patterns: Sequence[str] = ANSWERING) -> str:
    """Hash of the contents of every file that changes an answer: equal for a copy, another for other weights."""
    digest = hashlib.sha256()
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    for path in sorted(files):
        digest.update(f"{path.name}\0{file_hash(path)}\n".encode())
    return digest.hexdigest()


def check_model_files(folder: Path) -> None:
    """Raise UserError for a link of a model's folder that leads nowhere, and for settings that are no JSON object."""
    for path in sorted({path for pattern in ANSWERING for path in folder.glob(pattern)}):
        if path.is_symlink() and not path.exists():
            raise UserError(
                f"{path}: a link to {path.readlink()}, where nothing is: a snapshot of the Hub's cache was copied "
                "without its files; copy it with `cp -rL`, or give the model's id"
            )
    for path in sorted({path for pattern in _OBJECTS for path in folder.glob(pattern)}):
        read_json_object(path)


def weight_files(index: Path) -> set[str]:
    """Return the names of the weight files that a *.index.json lists. Raises UserError for a damaged one."""
    parts = _read_json(index).get("weight_map", {})
    if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
        raise UserError(f"{index}: its weight_map does not name a file for each weight: copy it again")
    return set(parts.values())


def check_hugging_face(folder: Path) -> None:
    """Raise UserError, naming the file, for a config or weights that are missing or cut off."""
    check_model_files(folder)
    _read_json(folder / "config.json")
    weights = sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))
    for index in folder.glob("*.index.json"):
        parts = weight_files(index)
        if absent := sorted(part for part in parts if not (folder / part).exists()):
            raise UserError(
                f"{folder}: {len(absent)} of the {len(parts)} weight files that {index.name} lists are missing "
                f"({absent[0]}): the checkpoint is incomplete; copy or download it again, or name another step"
            )
    if not weights:
        raise UserError(
            f"{folder}: a config.json but no weights ({', '.join(WEIGHTS)}): the checkpoint is incomplete; copy or "
            "download it again, or name another step"
        )
    for path in weights:
        if path.suffix == ".safetensors":
            _check_safetensors(path)
        else:
            _check_torch(path)


def check_shards(folder: Path) -> None:
    """Raise UserError when verl's FSDP shards in the folder are not all there and whole."""
    config = folder / "fsdp_config.json"
    matches = [(_SHARD.fullmatch(path.name), path) for path in folder.glob("*.pt")]
    shards = {int(match[2]): path for match, path in matches if match}
    if not shards:
        raise UserError(
            f"{folder}: no model shards (model_world_size_N_rank_R.pt) and no Hugging Face weights: it was not saved "
            "or was removed to keep only newer ones; name another step of the run"
        )
    if not config.exists():
        raise UserError(f"{folder}: no fsdp_config.json: the checkpoint is half written; name another step of the run")
    world_size = int(_read_json(config).get("world_size", len(shards)))
    if absent := [rank for rank in range(world_size) if rank not in shards]:
        raise UserError(
            f"{folder}: model_world_size_{world_size}_rank_{absent[0]}.pt is missing ({len(absent)} of {world_size} "
            "shards are): the checkpoint is half written; name another step of the run"
        )
    for path in shards.values():
        _check_torch(path)


def shards_folder(step_folder: Path) -> Path:
    """Where verl's shards are in RUN/global_step_N: RL's in a folder for the actor."""
    return step_folder / "actor" if (step_folder / "actor").is_dir() else step_folder


def world_size(folder: Path) -> int | None:
    """How many processes saved verl's FSDP shards in the folder; None when there are none."""
    matches = [_SHARD.fullmatch(path.name) for path in folder.glob("*.pt")]
    return next((int(match[1]) for match in matches if match), None)


def read_if_whole(path: Path) -> dict[str, Any]:
    """What a file of JSON notes; {} where there is none, and for one that is damaged."""
    try:
        return read_json_object(path)
    except (FileNotFoundError, UserError):
        return {}


# ---- parts


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except FileNotFoundError:
        raise UserError(f"{path.parent}: no {path.name}: not a model folder, or one that is half written") from None


def _check_safetensors(path: Path) -> None:
    """The header says where the last tensor ends; that is the size of the file."""
    try:
        safe_open(path, "np")
    except SafetensorError as error:
        raise UserError(_cut_off(path, f"{path.stat().st_size:,} bytes, {error}")) from None


def _check_torch(path: Path) -> None:
    if not zipfile.is_zipfile(path):  # torch.save writes a zip, whose directory comes last
        raise UserError(_cut_off(path, f"{path.stat().st_size:,} bytes without an end"))
    check_plain(path)


def _cut_off(path: Path, what: str) -> str:
    return f"{path}: {what}: the file is cut off, the checkpoint half written; copy it again or name another step"
