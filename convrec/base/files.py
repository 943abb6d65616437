"""Files and folders that are there whole or not at all, JSON, and the hash of a file.

What is not complete has a temporary name beside its target, `.NAME.partial-HOST-THREAD`, and so has for a moment the
folder that another takes the place of, `.NAME.partial-HOST-THREAD.old`. So no reader sees half a file,
several writers of one file do not disturb each other, and the next one removes what a killed process has left.
"""

import errno
import hashlib
import json
import math
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convrec.base.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

OLD = ".old"
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)  # the second is a user's quota
FULL_BYTES = 2**20  # free on a disk beside a file for which there was no room


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary name to write a file under. The file is renamed to `path` at the end, and removed on an error.

    The folders above `path` are made.
    """
    partial = _partial(path)
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def folder_written_whole(path: Path, unless: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """The same for a folder, which is there and empty at the beginning. A folder `path`, or one it is a link to, is
    replaced.

    Where `unless` says at the end that another process has made `path` meanwhile, that one stays: it may be in use.
    """
    path = path.resolve()
    partial = _partial(path)
    partial.mkdir()
    old = partial.with_name(partial.name + OLD)
    try:
        yield partial
        if not unless():
            if path.exists():
                path.rename(old)
            partial.rename(path)
    finally:
        for left in (old, partial):
            _tidy(left, path)


def scratch_folder(path: Path) -> AbstractContextManager[Path]:
    """An empty folder beside `path` for what is needed until the block ends; it never becomes `path`."""
    return folder_written_whole(path, unless=lambda: True)


def _partial(path: Path) -> Path:
    """This thread's temporary name for `path`. What threads of this host left that have ended is removed; in a
    container that starts anew, the one before had this thread's id."""
    path.parent.mkdir(parents=True, exist_ok=True)
    start = f".{path.name}.partial-{socket.gethostname()}-"
    me = threading.get_native_id()
    for name in os.listdir(path.parent):
        thread = name.removeprefix(start).removesuffix(OLD)
        if not name.startswith(start) or not thread.isdigit() or not (int(thread) == me or has_ended(thread)):
            continue
        _tidy(path.parent / name, path)
    return path.with_name(f"{start}{me}")


def _tidy(left: Path, path: Path) -> None:
    """Remove what was left beside `path`, or put it back when it ended between the two renames."""
    if left.name.endswith(OLD) and left.exists() and not path.exists():
        left.rename(path)
    elif left.is_dir():
        shutil.rmtree(left, ignore_errors=True)
    else:
        left.unlink(missing_ok=True)


def has_ended(thread: str) -> bool:
    """Whether this thread of this host, named by its id, is gone; also one that nobody has waited for yet."""
    try:
        status = Path("/proc", thread, "stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


def names_full_disk(text: str) -> bool:
    """Whether the text of an error says that a disk, or a user's part of it, is full."""
    return any(os.strerror(code) in text for code in FULL_DISK)


def find_full_disk(folder: Path) -> str:
    """Return why a file cannot be written into the folder for want of room; "" where it can.

    A quota shows only in an attempt, and on some network storage only when the file is brought to the disk.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(FULL_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return os.strerror(error.errno) if error.errno in FULL_DISK else ""
    return ""


def write_text(path: Path, text: str) -> None:
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """A number that does not exist (NaN: a standard error of one conversation) is written as null."""
    write_text(path, json.dumps(_without_nan(value), indent=2, ensure_ascii=False) + "\n")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_jsonl(path: Path, values: Iterable[Any]) -> None:
    write_text(path, "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))


def read_json(path: Path) -> Any:
    """Raises FileNotFoundError, and UserError where the file holds no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not readable as JSON ({error}): copy or make it again") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: it holds no JSON, or something else than an object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else json.dumps(value)[:20]
        raise UserError(f"{path}: expected a JSON object, it is {kind}: copy or make it again")
    return value


def write_table(path: Path, table: "pa.Table") -> None:
    import pyarrow.parquet as pq  # half a second, for those alone who write tables

    with written_whole(path) as partial:
        pq.write_table(table, partial)


def file_hash(path: str | os.PathLike) -> str:
    """SHA-256 of the content, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
