"""complete.json of a checkpoint: its files with sizes and checksums, written when all of them are on the disk.

{"actor/model_world_size_1_rank_0.pt": {"bytes": 1024, "xxh3_128": "..."}, ...}; version 0.1 wrote the bytes alone.
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from convrec.errors import UserError
from convrec.files import read_json, write_json
from convrec.runs.card import CARD

MANIFEST = "complete.json"
CHECKSUM = "xxh3_128"  # against faults of disks and copies, not against somebody who changes the manifest as well
BLOCK_BYTES = 2**22
THREADS = 4
# what `convrec.checkpoints.models` adds to a checkpoint later, whole and (also as version 0.1 names it) unfinished
_MERGED = re.compile(r"\.?merged(\..*)?")


def write(folder: Path) -> None:
    """Bring every file below the folder to the disk, then note them.

    After a loss of power a checkpoint with a manifest is therefore whole. Checksums are computed while the disk writes:
    what was just written is still in memory.
    """
    names = sorted(sizes(folder))
    with ThreadPoolExecutor(THREADS) as waiting, ThreadPoolExecutor(THREADS) as computing:
        synced = [waiting.submit(_sync, folder / name) for name in names]
        entries = list(computing.map(lambda name: _entry(folder / name), names))
        for file in synced:
            file.result()  # raises what the disk has to say
    for below in {part for name in names for part in (folder / name).parents if part.is_relative_to(folder)}:
        _sync(below)
    write_json(folder / MANIFEST, dict(zip(names, entries, strict=True)))
    for path in (folder / MANIFEST, folder, folder.parent):
        _sync(path)


def is_complete(folder: Path) -> bool:
    """Whether every file has the size it was written with."""
    noted, there = read(folder), sizes(folder)
    return bool(noted) and all(there.get(name) == _bytes(entry) for name, entry in noted.items())


def damaged_file(folder: Path) -> str | None:
    """The first file, in the order of names, whose content is not what was written; reads all of them."""
    noted = [(name, entry[CHECKSUM]) for name, entry in read(folder).items() if isinstance(entry, dict)]
    with ThreadPoolExecutor(THREADS) as threads:
        contents = list(threads.map(lambda item: _checksum(folder / item[0]), noted))
    return next((name for (name, wanted), found in zip(noted, contents, strict=True) if wanted != found), None)


def read(folder: Path) -> dict[str, Any]:
    """The manifest; {} where there is none, or one that cannot be read."""
    try:
        return read_json(folder / MANIFEST)
    except (FileNotFoundError, UserError):
        return {}


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file below, by relative path; what readers add later does not count, nor the model card, in which
    its owner writes the licence."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in (MANIFEST, CARD)
        and not any(_MERGED.fullmatch(part) for part in path.relative_to(folder).parts)
    }


def _bytes(entry: Any) -> int:
    return entry["bytes"] if isinstance(entry, dict) else entry


def _entry(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, CHECKSUM: _checksum(file)}


def _checksum(file: Path) -> str:
    digest = xxhash.xxh3_128()
    try:
        with file.open("rb") as content:
            while block := content.read(BLOCK_BYTES):
                digest.update(block)
    except OSError:  # the disk cannot read it
        return ""
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if path.is_file():  # some network storage has no fsync of folders
            raise
    finally:
        os.close(descriptor)
