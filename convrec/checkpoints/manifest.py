"""A checkpoint's complete.json: sizes and checksums of its files, written after all of them are on disk.

{"actor/model_world_size_1_rank_0.pt": {"bytes": 1024, "xxh3_128": "..."}, ...}
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from convrec.base.errors import UserError
from convrec.base.files import list_files, read_json, write_json
from convrec.runs.card import CARD
from convrec.runs.folder import MANIFEST

CHECKSUM = "xxh3_128"  # detects faulty disks and copies, not an attacker who also rewrites the manifest
THREADS = 4
# Folders that convrec.checkpoints.models adds to a checkpoint later.
MERGED = "merged"
UNFINISHED = ".merged."


def write(folder: Path) -> None:
    """Sync every file below the folder to disk, then write the manifest.

    After a power failure, a checkpoint that has a manifest is therefore complete. Checksums are computed while the disk
    writes, because the files are still in memory.

    Raises:
        OSError: the disk refuses a file.
    """
    file_bytes = measure_files(folder)
    names = sorted(file_bytes)
    with ThreadPoolExecutor(THREADS) as sync_threads, ThreadPoolExecutor(THREADS) as checksum_threads:
        syncs = [sync_threads.submit(_sync, folder / name) for name in names]
        checksums = list(checksum_threads.map(lambda name: _checksum(folder / name), names))
        for sync in syncs:
            sync.result()  # raises the disk's error
    for subfolder in {part for name in names for part in (folder / name).parents if part.is_relative_to(folder)}:
        _sync(subfolder)
    entries = zip(names, checksums, strict=True)
    write_json(folder / MANIFEST, {name: {"bytes": file_bytes[name], CHECKSUM: checksum} for name, checksum in entries})
    for path in (folder / MANIFEST, folder, folder.parent):
        _sync(path)


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the manifest's entry for each file, {} if the manifest is missing or damaged."""
    try:
        manifest = read_json(folder / MANIFEST)
    except (OSError, UserError):
        return {}
    is_valid = isinstance(manifest, dict) and all(_is_entry(entry) for entry in manifest.values())
    return manifest if is_valid else {}


def _is_entry(entry: Any) -> bool:
    """Return whether `write` wrote this entry: a flipped bit in a key can leave valid JSON."""
    return isinstance(entry, dict) and {"bytes", CHECKSUM} <= entry.keys()


def is_complete(folder: Path) -> bool:
    """Return whether every file has the size with which it was written."""
    manifest = read(folder)
    file_bytes = measure_files(folder)
    return bool(manifest) and all(file_bytes.get(name) == entry["bytes"] for name, entry in manifest.items())


def find_damaged_file(folder: Path) -> str | None:
    """Return the first file by name whose content differs from what was written, None if all match. Reads all files."""
    manifest = read(folder)
    with ThreadPoolExecutor(THREADS) as threads:
        checksums = dict(zip(manifest, threads.map(lambda name: _checksum(folder / name), manifest), strict=True))
    return next((name for name, entry in manifest.items() if entry[CHECKSUM] != checksums[name]), None)


def measure_files(folder: Path) -> dict[str, int]:
    """Return the bytes of every file below the folder, by relative path.

    Files that readers add later, and may remove at any moment, do not count, nor does the model card, which the owner
    edits.
    """
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in list_files(folder)
        if path.name not in (MANIFEST, CARD)
        and not any(part == MERGED or part.startswith(UNFINISHED) for part in path.relative_to(folder).parts)
        and path.is_file()
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
        if path.is_file():  # some network storage cannot fsync folders
            raise
    finally:
        os.close(descriptor)
