"""complete.json of a checkpoint: its files with sizes and checksums, written when all of them are on the disk.

{"actor/model_world_size_1_rank_0.pt": {"bytes": 1024, "xxh3_128": "..."}, ...}
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from convrec.base.errors import UserError
from convrec.base.files import read_json, write_json
from convrec.runs.card import CARD
from convrec.runs.folder import MANIFEST

CHECKSUM = "xxh3_128"  # against faults of disks and copies, not against somebody who changes the manifest as well
THREADS = 4
# what convrec.checkpoints.models adds to a checkpoint later
MERGED = "merged"
UNFINISHED = ".merged."


def write(folder: Path) -> None:
    """Bring every file below the folder to the disk, then note them.

    After a loss of power a checkpoint with a manifest is therefore whole. Checksums are computed while the disk writes:
    what was just written is still in memory.
    """
    bytes_of = sizes(folder)
    names = sorted(bytes_of)
    with ThreadPoolExecutor(THREADS) as waiting, ThreadPoolExecutor(THREADS) as computing:
        synced = [waiting.submit(_sync, folder / name) for name in names]
        checksums = list(computing.map(lambda name: _checksum(folder / name), names))
        for file in synced:
            file.result()  # raises what the disk has to say
    for below in {part for name in names for part in (folder / name).parents if part.is_relative_to(folder)}:
        _sync(below)
    entries = zip(names, checksums, strict=True)
    write_json(folder / MANIFEST, {name: {"bytes": bytes_of[name], CHECKSUM: checksum} for name, checksum in entries})
    for path in (folder / MANIFEST, folder, folder.parent):
        _sync(path)


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what the manifest notes of each file; {} where there is none, or where it is damaged itself."""
    try:
        noted = read_json(folder / MANIFEST)
    except (OSError, UserError):
        return {}
    is_sound = isinstance(noted, dict) and all(_is_entry(entry) for entry in noted.values())
    return noted if is_sound else {}


def _is_entry(entry: Any) -> bool:
    """Whether this is what `write` notes of a file. One flipped bit in a name of JSON leaves it JSON."""
    return isinstance(entry, dict) and {"bytes", CHECKSUM} <= entry.keys()


def is_complete(folder: Path) -> bool:
    """Whether every file has the size it was written with."""
    noted = read(folder)
    there = sizes(folder)
    return bool(noted) and all(there.get(name) == entry["bytes"] for name, entry in noted.items())


def damaged_file(folder: Path) -> str | None:
    """The first file, in the order of names, whose content is not what was written; reads all of them."""
    noted = read(folder)
    with ThreadPoolExecutor(THREADS) as threads:
        contents = dict(zip(noted, threads.map(lambda name: _checksum(folder / name), noted), strict=True))
    return next((name for name, entry in noted.items() if entry[CHECKSUM] != contents[name]), None)


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file below, by relative path; what readers add later does not count, nor the model card, in which
    its owner writes the licence."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in (MANIFEST, CARD)
        and not any(part == MERGED or part.startswith(UNFINISHED) for part in path.relative_to(folder).parts)
    }


def _checksum(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, xxhash.xxh3_128).hexdigest()
    except OSError:  # the disk cannot read it
        return ""


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if path.is_file():  # some network storage has no fsync of folders
            raise
    finally:
        os.close(descriptor)
