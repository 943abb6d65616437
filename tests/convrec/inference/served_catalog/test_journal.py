"""Compaction of the journal: a killed process loses nothing, and the file's size depends on items, not on changes."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from convrec.inference.served_catalog.journal import FILE, Journal

CATALOG_LINE = 200  # bytes at most


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: these tests kill processes, not machines."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def catalog_file(tmp_path: Path) -> Path:
    file = tmp_path / "catalog.parquet"
    file.write_bytes(b"a catalog")
    return file


def open_journal(catalog_file: Path, compact_bytes: int = 1 << 20) -> Journal:
    folder = catalog_file.parent / "state"
    return Journal(folder, catalog_file.name, sha256="", has_ids=True, dated=True, compact_bytes=compact_bytes)


def write(journal: Journal, **change: dict | None) -> None:
    with journal.lock():
        journal.mark_read(journal.read_news()[1])
        journal.append(change)


def wait_for_lock(path: Path) -> None:
    """Wait until a process waits for the lock of this file: the kernel marks waiting ones with an arrow."""
    inode = f":{path.stat().st_ino} "
    while not any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()):
        time.sleep(0.01)


def read_everything(catalog_file: Path) -> dict:
    return open_journal(catalog_file).read_news()[0]


def test_many_changes_of_one_item_compact_to_a_small_file(catalog_file: Path) -> None:
    journal = open_journal(catalog_file, compact_bytes=4096)
    sizes = []
    for price in range(500):
        write(journal, a={"title": "Heat", "year": 1995, "price": price}, b=None)
        if journal.needs_compaction():
            journal.compact()
        sizes.append(journal.path.stat().st_size)
    assert max(sizes) < 4096 + CATALOG_LINE
    assert read_everything(catalog_file) == {"a": {"title": "Heat", "year": 1995, "price": 499}, "b": None}


def test_file_of_distinct_items_is_not_compacted_repeatedly(catalog_file: Path) -> None:
    journal = open_journal(catalog_file, compact_bytes=1000)
    compactions = 0
    for number in range(300):
        write(journal, **{f"item-{number}": {"title": f"Film {number}", "year": 2000}})
        if journal.needs_compaction():
            journal.compact()
            compactions += 1
    assert 1 <= compactions <= 6  # each time at twice the size
    assert len(read_everything(catalog_file)) == 300


def test_a_reader_of_the_old_file_continues_with_the_new_one(catalog_file: Path) -> None:
    writer = open_journal(catalog_file)
    reader = open_journal(catalog_file)
    write(writer, a={"title": "Heat", "year": 1995}, b={"title": "Ran", "year": 1985})
    write(writer, a={"title": "Heat", "year": 1996})
    _, place = reader.read_news()
    reader.mark_read(place)
    assert not reader.has_news()
    for year in (1997, 1998):  # the second new file could get the first file's inode
        writer.compact()
        write(writer, a={"title": "Heat", "year": year})
    assert reader.has_news()
    news, place = reader.read_news()
    assert news == {"b": {"title": "Ran", "year": 1985}, "a": {"title": "Heat", "year": 1998}}
    reader.mark_read(place)
    assert not reader.has_news()


def test_writer_waiting_on_a_replaced_file_writes_to_the_new_one(catalog_file: Path) -> None:
    waiting, compacting = open_journal(catalog_file), open_journal(catalog_file)
    write(waiting, a={"title": "Heat", "year": 1995})
    writer = threading.Thread(target=write, args=(waiting,), kwargs={"b": {"title": "Ran", "year": 1985}})
    with compacting.lock():
        writer.start()
        wait_for_lock(compacting.path)
        compacting._replace_file()
    writer.join()
    assert read_everything(catalog_file).keys() == {"a", "b"}


def test_a_compaction_killed_at_any_line_loses_nothing(catalog_file: Path) -> None:
    """For every line that a compaction executes here or in convrec.base.files, a child is killed at that line."""
    expected = {f"item-{number}": {"title": f"Film {number}", "year": 2000 + number} for number in range(2)}
    journal = open_journal(catalog_file)
    for _ in range(3):
        write(journal, **expected)
    path = catalog_file.parent / "state" / FILE
    before = path.read_bytes()
    is_replaced = []
    for line in range(1, 1000):
        path.write_bytes(before)
        child = os.fork()
        if not child:
            compact_and_die(catalog_file, line)
        _, status = os.waitpid(child, 0)
        assert read_everything(catalog_file) == expected, f"killed at line {line}"
        is_replaced.append(path.stat().st_size < len(before))
        write(open_journal(catalog_file), late={"title": "Late", "year": 2020})  # the lock is free
        assert read_everything(catalog_file).keys() == expected.keys() | {"late"}
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert is_replaced[-1]
    assert is_replaced.count(False) > 10
    assert is_replaced.count(True) > 1  # some were killed after the rename
    open_journal(catalog_file).compact()
    assert [file.name for file in path.parent.iterdir()] == [FILE]  # files of killed processes are removed


def compact_and_die(catalog_file: Path, line: int) -> None:
    """Compact in this process, and kill it at the given executed line; exit with status 0 after the last one."""
    journal = open_journal(catalog_file)
    executed = 0

    def trace(frame, event, _):
        nonlocal executed
        if not frame.f_code.co_filename.endswith(("journal.py", "files.py")):
            return None
        executed += event == "line"
        if executed == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    journal.compact()
    os._exit(0)


def test_looking_for_news_beside_a_writer_finds_no_damage(catalog_file: Path) -> None:
    """Threads of one process: one appends, the others look whether there is something new."""
    journal = open_journal(catalog_file, compact_bytes=4096)
    ended = threading.Event()
    errors: list[Exception] = []

    def look() -> None:
        try:
            while not ended.is_set():
                journal.has_news()
                journal.count_unread_bytes()
                journal.read_news()
        except Exception as error:
            errors.append(error)

    looking = [threading.Thread(target=look) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for one in looking:
            one.start()
        for price in range(300):
            write(journal, a={"title": "Heat", "year": 1995, "price": price})
            if journal.needs_compaction():
                journal.compact()
    finally:
        ended.set()
        for one in looking:
            one.join()
        sys.setswitchinterval(interval)
    assert errors == []


def test_compaction_drops_an_unfinished_line(catalog_file: Path) -> None:
    journal = open_journal(catalog_file)
    write(journal, a={"title": "Heat", "year": 1995})
    with journal.path.open("a") as file:
        file.write('{"b": {"title": "Ra')
    journal.compact()
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert lines[0]["catalog"] == catalog_file.name
    assert lines[1:] == [{"a": {"title": "Heat", "year": 1995}}]
