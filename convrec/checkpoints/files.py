"""Check that a checkpoint's files are complete and belong together, and fingerprint them. Checks read headers only.

A copy that ran out of disk space, or a run killed while saving, leaves files that fail late or, worse, load and
generate nonsense. These checks run before vLLM starts.
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
ANSWERING = (*WEIGHTS, *BESIDE_WEIGHTS)  # every file that changes what the model generates
SHARDS = ("model_world_size_*.pt", "*.json", "huggingface/*.json")  # what verl's merger reads
_OBJECTS = ("config.json", "generation_config.json", "tokenizer_config.json", "adapter_config.json", "*.index.json")
_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def has_weights(folder: Path) -> bool:
    """Return whether the folder has weights in Hugging Face form."""
    return any(next(folder.glob(pattern), None) for pattern in WEIGHTS) if folder.is_dir() else False


def fingerprint(folder: Path, patterns: Sequence[str] = ANSWERING) -> str:
    """Return a hash of the contents of every file that changes what the model generates.

    A copy has the same fingerprint; a folder with other weights has another.

    Args:
        folder: a model's folder.
        patterns: the files, below the folder. A pattern without a match is ignored.
    """
    digest = hashlib.sha256()
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    for path in sorted(files):
        digest.update(f"{path.name}\0{file_hash(path)}\n".encode())
    return digest.hexdigest()


def check_model_files(folder: Path) -> None:
    """Check a model folder for dangling links and for settings that are not JSON objects.

    Raises:
        UserError: the message names the file.
    """
    for path in sorted({path for pattern in ANSWERING for path in folder.glob(pattern)}):
        if path.is_symlink() and not path.exists():
            raise UserError(
                "checkpoint.dangling-link",
                f"{path}: dangling link to {path.readlink()}: a snapshot in the Hub's cache was copied without the "
                "files that it links to. Copy it with `cp -rL`, or give the model's id",
            )
    for path in sorted({path for pattern in _OBJECTS for path in folder.glob(pattern)}):
        read_json_object(path)


def read_weight_files(index: Path) -> set[str]:
    """Return the names of the weight files that a *.index.json lists.

    Raises:
        UserError: the index is damaged.
    """
    parts = _read_json(index).get("weight_map", {})
    if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
        raise UserError(
            "checkpoint.damaged-index", f"{index}: weight_map does not name a file for every weight. Copy it again"
        )
    return set(parts.values())


def check_hugging_face(folder: Path) -> None:
    """Check that a Hugging Face folder has a config and complete weights.

    Raises:
        UserError: a file is missing or truncated; the message names it.
    """
    check_model_files(folder)
    _read_json(folder / "config.json")
    weights = sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))
    for index in folder.glob("*.index.json"):
        parts = read_weight_files(index)
        if absent := sorted(part for part in parts if not (folder / part).exists()):
            raise UserError(
                "checkpoint.missing-weights",
                f"{folder}: incomplete checkpoint: {len(absent)} of the {len(parts)} weight files in {index.name} "
                f"are missing ({absent[0]}). Copy or download it again, or name another step",
            )
    if not weights:
        raise UserError(
            "checkpoint.missing-weights",
            f"{folder}: incomplete checkpoint: it has a config.json but no weights ({', '.join(WEIGHTS)}). Copy or "
            "download it again, or name another step",
        )
    for path in weights:
        if path.suffix == ".safetensors":
            _check_safetensors(path)
        else:
            _check_torch(path)


def check_shards(folder: Path) -> None:
    """Check that a folder has all of verl's FSDP shards, and that none is truncated.

    Raises:
        UserError: a shard or fsdp_config.json is missing or damaged.
    """
    config = folder / "fsdp_config.json"
    matches = [(_SHARD.fullmatch(path.name), path) for path in folder.glob("*.pt")]
    shards = {int(match[2]): path for match, path in matches if match}
    if not shards:
        raise UserError(
            "checkpoint.no-shards",
            f"{folder}: no model shards (model_world_size_N_rank_R.pt) and no Hugging Face weights: the model was not "
            "saved, or the checkpoint was pruned. Name another step of the run",
        )
    if not config.exists():
        raise UserError(
            "checkpoint.missing-file",
            f"{folder}: incomplete checkpoint: fsdp_config.json is missing. Name another step of the run",
        )
    world_size = int(_read_json(config).get("world_size", len(shards)))
    if absent := [rank for rank in range(world_size) if rank not in shards]:
        raise UserError(
            "checkpoint.missing-file",
            f"{folder}: incomplete checkpoint: {len(absent)} of {world_size} shards are missing "
            f"(model_world_size_{world_size}_rank_{absent[0]}.pt). Name another step of the run",
        )
    for path in shards.values():
        _check_torch(path)


def locate_shards(step_folder: Path) -> Path:
    """Return the folder of verl's shards in RUN/global_step_N: `actor` for RL, the folder itself for SFT."""
    return step_folder / "actor" if (step_folder / "actor").is_dir() else step_folder


def read_world_size(folder: Path) -> int | None:
    """Return how many processes saved verl's FSDP shards in the folder, None if it has none."""
    matches = [_SHARD.fullmatch(path.name) for path in folder.glob("*.pt")]
    return next((int(match[1]) for match in matches if match), None)


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, {} if the file is missing or damaged."""
    try:
        return read_json_object(path)
    except (FileNotFoundError, UserError):
        return {}


# ---- parts


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except FileNotFoundError:
        raise UserError(
            "checkpoint.missing-file", f"{path.parent}: no {path.name}: not a model folder, or an incomplete one"
        ) from None


def _check_safetensors(path: Path) -> None:
    """Compare the file's size with the end of the last tensor, which the header names."""
    try:
        safe_open(path, "np")
    except SafetensorError as error:
        raise UserError("checkpoint.truncated-file", _describe_truncation(path, str(error))) from None


def _check_torch(path: Path) -> None:
    if not zipfile.is_zipfile(path):  # torch.save writes a zip, whose directory comes last
        raise UserError("checkpoint.truncated-file", _describe_truncation(path, "the end of the archive is missing"))
    check_plain(path)


def _describe_truncation(path: Path, problem: str) -> str:
    size = f"{path.stat().st_size:,} bytes"
    return f"{path}: truncated file ({size}; {problem}). Copy the checkpoint again, or name another step"
