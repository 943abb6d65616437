"""Write files and folders atomically, read and write JSON, and hash files.

An incomplete file or folder has a temporary name next to its target, `.NAME.partial-HOST-NAMESPACE-THREAD`, where
NAMESPACE is that of the process ids; a folder that is being replaced has for a moment the same name with `.old`, and
meanwhile `.NAME.partial.lock` is locked. Readers therefore never see half a file, several writers of one file or folder
do not disturb each other, and the next writer removes what a killed process left.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from convrec.base.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

OLD = ".old"
PID_NAMESPACE = "/proc/self/ns/pid"
ABANDONED_SECONDS = 24 * 3600  # without a change, a writer that cannot be looked up counts as ended
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)  # EDQUOT: the user's quota
FULL_BYTES = 2**20  # a disk with less free space counts as full


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write a file to. It is renamed to `path` at the end, and removed on an error.

    Missing folders above `path` are created.
    """
    partial = _make_partial_path(path)
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_write_folder(path: Path, unless: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """Yield an empty temporary folder to fill. It replaces `path`, or the folder that `path` links to, at the end.

    Args:
        path: the folder to write.
        unless: called at the end, while no other writer can replace `path`; returns True if another process has
            meanwhile made it. It then stays, because it may be in use.
    """
    path = path.resolve()
    partial = _make_partial_path(path)
    partial.mkdir()
    old = partial.with_name(partial.name + OLD)
    try:
        yield partial
        with _lock(path):
            if not unless():
                if path.exists():
                    path.rename(old)
                partial.rename(path)
    finally:
        for leftover in (old, partial):
            _clean_up(leftover, path)


def scratch_folder(path: Path) -> AbstractContextManager[Path]:
    """Yield an empty temporary folder next to `path` that is removed at the end."""
    return atomic_write_folder(path, unless=lambda: True)


def _make_partial_path(path: Path) -> Path:
    """Return this thread's temporary name for `path`, and remove what ended threads of this host left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    start = f".{path.name}.partial-{socket.gethostname()}-"
    names = re.compile(rf"{re.escape(start)}(?P<namespace>\d+)-(?P<thread>\d+)({re.escape(OLD)})?")
    for name in os.listdir(path.parent):
        match = names.fullmatch(name)
        if match and _is_abandoned(path.parent / name, int(match["namespace"]), int(match["thread"])):
            _clean_up(path.parent / name, path)
    return path.with_name(f"{start}{_get_pid_namespace()}-{threading.get_native_id()}")


def _get_pid_namespace() -> int:
    """Return a number for the namespace of this process's id: containers with one host name have different ones."""
    try:
        return os.stat(PID_NAMESPACE).st_ino
    except OSError:  # not Linux
        return 0


def _is_abandoned(partial: Path, namespace: int, thread: int) -> bool:
    """Return whether the thread that writes under a temporary name has ended.

    In a restarted container, a thread of the previous process may have had the id of this thread. Threads of another
    namespace cannot be looked up: theirs is abandoned when nothing in it has changed for ABANDONED_SECONDS.
    """
    if namespace == _get_pid_namespace():
        return thread == threading.get_native_id() or has_ended(str(thread))
    try:
        # the time of the last change in the file system; copied files keep their other times
        last_change = max(path.lstat().st_ctime for path in (partial, *partial.rglob("*")))
    except FileNotFoundError:  # its writer is at work
        return False
    return time.time() - last_change > ABANDONED_SECONDS


def _clean_up(leftover: Path, path: Path) -> None:
    """Remove a leftover next to `path`, or restore it if its writer died between the two renames."""
    if leftover.name.endswith(OLD) and leftover.exists():
        with _lock(path):
            if leftover.exists() and not path.exists():
                leftover.rename(path)
    if leftover.is_dir():
        shutil.rmtree(leftover, ignore_errors=True)
    else:
        leftover.unlink(missing_ok=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one writer at a time, of all processes and nodes, replace `path`; on storage without locks, do nothing.

    A file is locked, not the folder above: on NFS, other nodes do not see locks on folders.
    """
    name = path.with_name(f".{path.name}.partial.lock")
    file = _open_locked(name)
    try:
        yield
    finally:
        if file:
            name.unlink(missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_UN)  # closing does not unlock it if a process forked meanwhile has it open
            file.close()


def _open_locked(name: Path) -> IO[bytes] | None:
    """Create a file, wait for its lock, and return it open; None if it cannot be locked."""
    while True:
        try:
            file = name.open("ab")
        except OSError:  # the folder cannot be written: the rename says so
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            file.close()
            name.unlink(missing_ok=True)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), name.stat()):
                return file
        file.close()  # the previous holder has removed the file in the meantime


def has_ended(thread: str) -> bool:
    """Return whether the thread of this host with this id has ended, including zombies."""
    try:
        status = Path("/proc", thread, "stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


def names_full_disk(text: str) -> bool:
    """Return whether the text of an error says that a disk or a quota is full."""
    return any(os.strerror(code) in text for code in FULL_DISK)


def find_full_disk(folder: Path) -> str:
    """Return the error if there is no space to write a file into the folder, else "".

    A full quota shows only when writing, on some network storage only when syncing.
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
    """Write a text file atomically, as UTF-8.

    Args:
        path: the file, which is replaced; missing folders above it are created.
        text: the whole content. Line ends stay as they are, and none is added.
    """
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, indented and with a line end.

    Args:
        path: the file, which is replaced; missing folders above it are created.
        value: plain data. NaN (such as the standard error of a single conversation) and infinities become null.

    Raises:
        TypeError: the value holds something that JSON has no form for; the file stays as it was.
    """
    write_text(path, json.dumps(_replace_nan(value), indent=2, ensure_ascii=False) + "\n")


def _replace_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_jsonl(path: Path, values: Iterable[Any]) -> None:
    """Write one JSON value per line, atomically.

    Args:
        path: the file, which is replaced; missing folders above it are created.
        values: plain data, held in memory as text until the end. NaN is not replaced, unlike in `write_json`.
    """
    write_text(path, "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: the file is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(
            "file.invalid-json", f"{path}: not readable as JSON ({error}). Copy it again, or make it again"
        ) from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: the file is not JSON, or not an object.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else json.dumps(value)[:20]
        raise UserError(
            "file.not-a-json-object", f"{path}: expected a JSON object, not {kind}. Copy it again, or make it again"
        )
    return value


def write_table(path: Path, table: "pa.Table") -> None:
    """Write a parquet file atomically.

    Args:
        path: the file, which is replaced; missing folders above it are created.
        table: the whole content, with its schema.
    """
    import pyarrow.parquet as pq  # takes half a second, which other users of this module save

    with atomic_write(path) as partial:
        pq.write_table(table, partial)


def list_files(folder: Path) -> list[Path]:
    """Return the files below a folder, sorted. What another process removes meanwhile is left out.

    `Path.rglob` raises FileNotFoundError where a folder vanishes below it.
    """
    return sorted(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)


def file_hash(path: str | os.PathLike) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
