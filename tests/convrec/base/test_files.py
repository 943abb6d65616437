"""The contents of the disk while a file is written, after a failure, and after the writer was killed."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.files import (
    PID_NAMESPACE,
    atomic_write,
    atomic_write_folder,
    file_hash,
    find_full_disk,
    list_files,
    names_full_disk,
    read_json,
    scratch_folder,
    write_json,
    write_table,
    write_text,
)
from tests.user_errors import refuses

Writer = Callable[[Path], AbstractContextManager[Path]]


def write(writer: Writer, path: Path, error: type[BaseException] | None = None) -> None:
    with writer(path) as partial:
        (partial / "part" if partial.is_dir() else partial).write_text("content")
        if error:
            raise error


def make_partial_name(thread: int, namespace: int | None = None) -> str:
    """Return the temporary name of `it` for a thread of this host; namespace None: that of this process."""
    return f".it.partial-{socket.gethostname()}-{namespace or os.stat(PID_NAMESPACE).st_ino}-{thread}"


def set_pid_namespace(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Move this process to another container with the same host name."""
    stat = os.stat

    def stat_in_namespace(path: Any, **named: Any) -> Any:
        return SimpleNamespace(st_ino=number) if path == PID_NAMESPACE else stat(path, **named)

    monkeypatch.setattr(os, "stat", stat_in_namespace)


def list_names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_file_has_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"
    write_text(path, "before")
    with atomic_write(path) as partial:
        partial.write_text("aft")
        assert path.read_text() == "before"
        assert partial.parent == path.parent  # on the same storage, where a rename is atomic
        partial.write_text("after")
    assert path.read_text() == "after"
    assert list_names(path.parent) == ["a.txt"]


def test_files_are_listed_beside_a_folder_that_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("actor/a.pt", "merged/b.pt", "z.json"):
        write_text(tmp_path / name, "content")
    scandir = os.scandir

    def remove_first(path: str | Path) -> "os.ScandirIterator":
        if Path(path).name == "merged":
            (Path(path) / "b.pt").unlink()
            Path(path).rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", remove_first)
    assert list_files(tmp_path) == [tmp_path / "actor" / "a.pt", tmp_path / "z.json"]


def test_a_folder_has_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "model"
    for content in ("first", "second"):
        with atomic_write_folder(path) as partial:
            assert list_names(partial) == []
            (partial / content).touch()
            assert list_names(path) == ["first"] if path.exists() else content == "first"
        assert list_names(path) == [content]
    assert list_names(path.parent) == ["model"]


@pytest.mark.parametrize("writer", [atomic_write, atomic_write_folder])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_everything_as_it_was(tmp_path: Path, writer: Writer, error: type[BaseException]) -> None:
    path = tmp_path / "it"
    for before in ([], ["it"]):
        with pytest.raises(error):
            write(writer, path, error)
        assert list_names(tmp_path) == before
        write(writer, path)


WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from convrec.base import files
with getattr(files, sys.argv[1])(Path(sys.argv[2])) as partial:
    (partial / "part" if partial.is_dir() else partial).write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("writer", [atomic_write, atomic_write_folder])
def test_next_writer_removes_leftovers_of_a_killed_process(tmp_path: Path, writer: Writer) -> None:
    path = tmp_path / "it"
    for name in ("it", "it.2"):
        command = [sys.executable, "-c", WRITE_AND_DIE, writer.__name__, str(tmp_path / name)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    leftovers = list_names(tmp_path)
    assert [name.split("-")[0] for name in leftovers] == [".it.2.partial", ".it.partial"]
    write(writer, path)
    assert list_names(tmp_path) == [leftovers[0], "it"]  # leftovers of another file stay


@pytest.mark.parametrize("writer", [atomic_write, atomic_write_folder, scratch_folder])
def test_restarted_container_with_reused_ids_removes_leftovers(tmp_path: Path, writer: Writer) -> None:
    leftover = tmp_path / make_partial_name(threading.get_native_id())
    leftover.mkdir() if writer is not atomic_write else leftover.touch()
    write(writer, tmp_path / "it")
    assert list_names(tmp_path) == ([] if writer is scratch_folder else ["it"])


@pytest.mark.parametrize("writer", [atomic_write, atomic_write_folder])
def test_containers_with_one_host_name_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Writer
) -> None:
    """Both first processes have the same id, and neither sees the other one in /proc."""
    path = tmp_path / "it"
    set_pid_namespace(monkeypatch, 1)
    first = writer(path)
    partial = first.__enter__()
    (partial / "part" if partial.is_dir() else partial).write_text("first")
    set_pid_namespace(monkeypatch, 2)
    write(writer, path)
    assert list_names(tmp_path) == [partial.name, "it"]
    first.__exit__(None, None, None)
    assert (path / "part" if path.is_dir() else path).read_text() == "first"
    assert list_names(tmp_path) == ["it"]


def test_leftovers_of_another_container_are_removed_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = tmp_path / make_partial_name(1, namespace=1)
    leftover.mkdir()
    for path in (leftover / "part", leftover):
        path.touch()
        os.utime(path, (0, 0))  # what is copied with its times
    write(atomic_write_folder, tmp_path / "it")
    assert list_names(tmp_path) == [leftover.name, "it"]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 25 * 3600)
    write(atomic_write_folder, tmp_path / "it")
    assert list_names(tmp_path) == ["it"]


def test_host_with_a_longer_name_keeps_its_partial_file(tmp_path: Path) -> None:
    other_host = tmp_path / f".it.partial-{socket.gethostname()}-worker-0-1-1"
    other_host.touch()
    write(atomic_write, tmp_path / "it")
    assert list_names(tmp_path) == [other_host.name, "it"]


def test_previous_folder_is_restored_when_replacement_fails(tmp_path: Path) -> None:
    ended_process = subprocess.Popen(["true"])
    ended_process.wait()
    old = tmp_path / f"{make_partial_name(ended_process.pid)}.old"
    old.mkdir()
    (old / "before").touch()
    with atomic_write_folder(tmp_path / "it"):
        assert list_names(tmp_path / "it") == ["before"]
    (tmp_path / "it" / "before").touch()
    context = atomic_write_folder(tmp_path / "it")
    context.__enter__().rmdir()
    with pytest.raises(FileNotFoundError):
        context.__exit__(None, None, None)
    assert list_names(tmp_path / "it") == ["before"]
    old.mkdir()  # killed after both renames: the folder is the new one
    with atomic_write_folder(tmp_path / "it"):
        assert list_names(tmp_path / "it") == ["before"]
    assert list_names(tmp_path) == ["it"]


def test_a_folder_that_another_process_wrote_may_stay(tmp_path: Path) -> None:
    path = tmp_path / "it"
    with atomic_write_folder(path, unless=(path / "theirs").exists):
        path.mkdir()
        (path / "theirs").touch()
    assert list_names(path) == ["theirs"]
    with atomic_write_folder(path, unless=(path / "others").exists):
        pass
    assert list_names(path) == []
    assert list_names(tmp_path) == ["it"]


def test_a_folder_that_another_process_writes_during_the_check_stays(tmp_path: Path) -> None:
    """It may be in use as soon as it is there."""
    path = tmp_path / "it"
    in_use: list[int] = []

    def is_there() -> bool:
        return (path / "part").exists()

    def write_and_use() -> None:
        with atomic_write_folder(path, unless=is_there) as partial:
            (partial / "part").touch()
        in_use.append(path.stat().st_ino)

    other = threading.Thread(target=write_and_use)

    def look_beside_other() -> bool:
        was_there = is_there()
        other.start()
        other.join(0.5)  # ends at once unless it waits for this thread
        return was_there

    with atomic_write_folder(path, unless=look_beside_other) as partial:
        (partial / "part").touch()
    other.join()
    assert in_use == [path.stat().st_ino]
    assert list_names(tmp_path) == ["it"]


def test_threads_that_replace_one_folder_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "it"
    errors: list[OSError] = []

    def replace_often() -> None:
        for _ in range(50):
            try:
                write(atomic_write_folder, path)
            except OSError as error:
                errors.append(error)

    threads = [threading.Thread(target=replace_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list_names(path) == ["part"]
    assert list_names(tmp_path) == ["it"]


def test_storage_without_locks_is_written_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(2):
        write(atomic_write_folder, tmp_path / "it")
        assert list_names(tmp_path) == ["it"]


def test_threads_that_write_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    barrier = threading.Barrier(2)

    def write_both(text: str) -> None:
        with atomic_write(path) as partial:
            partial.write_text(text)
            barrier.wait(10)

    threads = [threading.Thread(target=write_both, args=(letter * 1000,)) for letter in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in ("a" * 1000, "b" * 1000)
    assert list_names(tmp_path) == ["a.txt"]


def test_json_round_trips_with_null_for_nan(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"title": "Amélie", "figures": (1, 0.5, float("nan"), {"se": float("inf")})})
    assert read_json(path) == {"title": "Amélie", "figures": [1, 0.5, None, {"se": None}]}
    assert "Amélie" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [b"", b'{"a": ', b"\xff{}"])
def test_a_damaged_json_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with refuses("file.invalid-json", path):
        read_json(path)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "b.json")


def test_a_table_round_trips_and_its_hash_depends_on_content(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2]})
    write_table(tmp_path / "a" / "t.parquet", table)
    write_table(tmp_path / "b.parquet", table)
    assert pq.read_table(tmp_path / "b.parquet") == table
    assert file_hash(tmp_path / "a" / "t.parquet") == file_hash(tmp_path / "b.parquet")
    (tmp_path / "abc").write_bytes(b"abc")  # the hash is from FIPS 180-2, appendix B.1
    assert file_hash(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_an_exhausted_quota_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Network storage reports it only when the file is synced."""
    text = str(OSError(code, os.strerror(code)))
    assert names_full_disk(text)
    assert not names_full_disk(str(OSError(errno.EIO, os.strerror(errno.EIO))))
    assert find_full_disk(tmp_path) == ""

    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    assert find_full_disk(tmp_path) in text
    assert not [*tmp_path.iterdir()]
