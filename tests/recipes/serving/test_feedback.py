"""The feedback log: stored lists and events, refusals, durability, and its bounded size."""

import asyncio
import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from recipes.serving.feedback import FILES, FeedbackLog
from recipes.serving.schema import FeedbackEvent
from tests.recipes.serving.conftest import LIST_ID
from tests.recipes.serving.test_http import error_of
from tests.user_errors import refuses

ASK = {"conversation": [{"role": "user", "content": "a film\nUSER: no turn"}], "k": 2, "seen": ["1", "Up (2009)"]}
CLICK = {"list_id": LIST_ID, "item_id": "2", "event": "click"}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob(FILES)) for line in path.read_text().splitlines()]


def a_list(number: int, items: int = 20) -> dict[str, Any]:
    shown = [{"item_id": str(n), "title": f"Film {n}", "year": 1990} for n in range(items)]
    return {"list_id": f"list-{number:032x}", "model": "films", "model_version": "films-1", "items": shown}


@pytest.fixture
def client(service: Callable[..., Any], tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(service(feedback=str(tmp_path)), base_url="http://localhost") as opened:  # one event loop
        yield opened


def test_nothing_is_kept_unless_the_operator_asks_for_it(service: Callable[..., Any], tmp_path: Path) -> None:
    client = TestClient(service(), base_url="http://localhost")
    assert client.post("/v1/recommendations", json=ASK).json()["list_id"] == LIST_ID
    refused = client.post("/v1/feedback", json=CLICK)
    assert (refused.status_code, "--feedback" in refused.json()["error"]["message"]) == (404, True)
    assert not client.get("/v1/models/films").json()["keeps_feedback"]
    assert list(tmp_path.iterdir()) == []


def test_a_question_is_no_list_that_was_shown(client: TestClient, films: Any, tmp_path: Path) -> None:
    films.asks = True
    for stream in (False, True):
        client.post("/v1/recommendations", json={**ASK, "may_ask": True, "stream": stream})
    assert lines(tmp_path) == []


def test_a_list_and_its_events_are_lines_that_can_be_joined(client: TestClient, tmp_path: Path) -> None:
    assert client.get("/v1/models/films").json()["keeps_feedback"]
    client.post("/v1/recommendations", json=ASK)
    of_whom = {"user_id": "u-1", "session_id": "s-1"}
    client.post("/v1/recommendations", json={**ASK, **of_whom, "stream": True, "model": "other"})
    of_listed, of_streamed = (line["list_id"] for line in lines(tmp_path))
    given = {"item_id": 2, "event": "like", "time": "2026-11-26T12:00:00+01:00", "event_id": "e-1"}
    given |= {"list_id": of_listed, "user_id": "u-2", "session_id": "s-2"}
    assert client.post("/v1/feedback", json=given).json() == given
    shown = {"list_id": of_streamed, "item_id": "0", "event": "impression"}
    assert client.post("/v1/feedback", json=shown).status_code == 200
    client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hello"}]})
    listed, streamed, liked, seen = lines(tmp_path)
    assert datetime.fromisoformat(listed.pop("time")).tzinfo
    assert listed == {
        "list_id": of_listed,
        "model": "films",
        "model_version": "films-1",
        "conversation": "USER: a film\n USER: no turn\n",  # as the model reads it
        "seen": ["1", "Up (2009)"],
        "items": [
            {"item_id": "0", "title": "Alien", "year": 1980},
            {"item_id": "2", "title": "Ran", "year": 1982},
        ],
    }
    assert (streamed["items"], streamed["model"]) == (listed["items"], "other")
    assert streamed["model_version"] == "films-1"
    assert {name: streamed[name] for name in of_whom} == of_whom
    assert liked == given | {"item_id": "2"}
    assert seen.items() > shown.items()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("wrong", "param", "word"),
    [
        ({"event": "clicked"}, "event", "'click', 'like', 'purchase' or 'dislike'"),
        ({"item_id": "1"}, "item_id", "'1'"),
        ({"item_id": ""}, "item_id", "at least 1"),
        ({"list_id": "list-7"}, "list_id", "pattern"),
        ({"user_id": ""}, "user_id", "at least 1"),
        ({"time": "2026-11-26T12:00:00"}, "time", "timezone"),
        ({"time": "yesterday"}, "time", "datetime"),
        ({"rank": 1}, "rank", "no such field"),
    ],
)
def test_a_bad_event_is_refused_in_one_sentence_and_not_kept(
    client: TestClient, tmp_path: Path, wrong: dict[str, Any], param: str, word: str
) -> None:
    list_id = client.post("/v1/recommendations", json=ASK).json()["list_id"]
    refused = client.post("/v1/feedback", json=CLICK | {"list_id": list_id} | wrong)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], word in error["message"], "\n" in error["message"]) == (param, True, False)
    assert len(lines(tmp_path)) == 1


def test_of_a_stream_that_is_left_what_was_sent_is_kept(tmp_path: Path) -> None:
    log = FeedbackLog(tmp_path)

    async def events() -> Any:
        for item in a_list(1)["items"]:
            yield "item", {"list_id": LIST_ID} | item

    async def leave_after(count: int) -> None:
        watched = log.watch(ASK, "films", events())
        for _ in range(count):
            await anext(watched)
        await watched.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave_after(3))
    asyncio.run(leave_after(0))
    (kept,) = lines(tmp_path)
    assert [item["item_id"] for item in kept["items"]] == ["0", "1", "2"]
    assert log._ids.is_genuine(kept["list_id"])
    assert (kept["model"], kept["model_version"]) == ("films", None)


def test_an_event_is_synced_to_the_disk_before_it_is_answered(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    sync = os.fsync

    def seen(file: Any) -> None:
        sync(file)
        synced.append(os.fstat(file.fileno()).st_size)

    monkeypatch.setattr(os, "fsync", seen)
    list_id = client.post("/v1/recommendations", json=ASK).json()["list_id"]
    assert synced == []  # lists are left to the system
    client.post("/v1/feedback", json=CLICK | {"list_id": list_id})
    assert synced == [sum(path.stat().st_size for path in tmp_path.glob(FILES))]


def test_unsynced_feedback_event_is_refused_and_may_be_resent(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    event = CLICK | {"list_id": client.post("/v1/recommendations", json=ASK).json()["list_id"]}

    def fail(file: Any) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        refused = client.post("/v1/feedback", json=event)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert "quota exceeded; feedback is lost" in caplog.text
    assert "convrec_feedback_lost_lines_total 1.0" in client.get("/metrics").text
    assert client.post("/v1/feedback", json=event).status_code == 200


KILLED = """
import asyncio, sys
from pathlib import Path
from recipes.serving.feedback import FeedbackLog
from recipes.serving.schema import FeedbackEvent

async def post_without_end():
    log, number = FeedbackLog(Path(sys.argv[1]), file_bytes=4000), 0
    while True:
        await log.add_event(FeedbackEvent(list_id=log.make_list_id(), item_id=number, event="click"))
        print(number, flush=True)
        number += 1

asyncio.run(post_without_end())
"""


def test_what_was_answered_outlives_kill_9(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    answered = [int(process.stdout.readline()) for _ in range(100)]
    process.send_signal(signal.SIGKILL)
    answered += map(int, process.stdout.read().split())
    process.wait()
    assert [int(line["item_id"]) for line in lines(tmp_path)][: len(answered)] == answered
    assert len(list(tmp_path.glob(FILES))) > 1  # across files


def test_feedback_files_rotate_and_stay_below_the_size_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    size = len(json.dumps(a_list(0))) + 200
    log = FeedbackLog(tmp_path, file_bytes=3 * size, most_bytes=12 * size)
    (tmp_path / "films.log").write_text("x" * 20 * size)  # not of the feedback
    for number in range(50):
        log.add_list(ASK, a_list(number))
        files = sorted(tmp_path.glob(FILES))
        assert sum(path.stat().st_size for path in files) <= 12 * size
    assert len(files) > 2
    kept = [int(line["list_id"][5:], 16) for line in lines(tmp_path)]
    assert kept == list(range(kept[0], 50))  # the newest, none between is missing
    assert len(kept) > 5
    assert ".jsonl: removed" in caplog.text
    for path in files:
        path.unlink()  # what an operator may do at any time
    log.add_list(ASK, a_list(51))
    assert [line["list_id"] for line in lines(tmp_path)] == [a_list(51)["list_id"]]


def list_numbers(folder: Path) -> list[int]:
    """Return the numbers of a_list in the log, in the order of files and lines."""
    return [int(line["list_id"][5:], 16) for line in lines(folder)]


def test_newest_events_of_a_quiet_process_outlive_older_files(tmp_path: Path) -> None:
    quiet = FeedbackLog(tmp_path)
    quiet.add_list(ASK, a_list(0))
    (quiet_file,) = tmp_path.glob(FILES)
    size = quiet_file.stat().st_size
    busy = FeedbackLog(tmp_path, file_bytes=3 * size, most_bytes=12 * size)
    for number in range(1, 7):
        busy.add_list(ASK, a_list(number))
    for age, path in enumerate(sorted(tmp_path.glob(FILES), reverse=True)):
        os.utime(path, (1e9 - age, 1e9 - age))
    quiet.add_list(ASK, a_list(7))
    for number in range(8, 12):  # opens the third file, and with 2 + 9 lines the fourth
        busy.add_list(ASK, a_list(number))
    assert list_numbers(tmp_path) == [0, 7, 4, 5, 6, 8, 9, 10, 11]


@pytest.mark.parametrize("looks_before", [0, 1])
def test_files_that_vanish_while_room_is_made_lose_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks_before: int
) -> None:
    FeedbackLog(tmp_path).add_list(ASK, a_list(0))
    (vanishing,) = tmp_path.glob(FILES)
    stat = Path.stat
    looks = 0

    def stat_beside_another_process(path: Path, **named: Any) -> os.stat_result:
        nonlocal looks
        if path == vanishing:
            looks += 1
            if looks == looks_before + 1:
                vanishing.unlink()
        return stat(path, **named)

    monkeypatch.setattr(Path, "stat", stat_beside_another_process)
    FeedbackLog(tmp_path).add_list(ASK, a_list(1))
    assert looks
    assert list_numbers(tmp_path)[-1:] == [1]


def test_a_line_is_written_again_if_its_file_was_removed_just_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FeedbackLog(tmp_path)
    log.add_list(ASK, a_list(0))
    (removed,) = tmp_path.glob(FILES)
    exists = Path.exists

    def exists_until_then(path: Path) -> bool:
        was_there = exists(path)
        if path == removed:
            path.unlink(missing_ok=True)
        return was_there

    monkeypatch.setattr(Path, "exists", exists_until_then)
    log.add_list(ASK, a_list(1))
    assert list_numbers(tmp_path) == [1]


def test_an_accepted_event_is_not_in_a_removed_file(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_id = client.post("/v1/recommendations", json=ASK).json()["list_id"]
    (removed,) = tmp_path.glob(FILES)
    sync = os.fsync

    def sync_after_removal(file: Any) -> None:
        removed.unlink(missing_ok=True)
        sync(file)

    monkeypatch.setattr(os, "fsync", sync_after_removal)
    assert client.post("/v1/feedback", json=CLICK | {"list_id": list_id}).status_code == 200
    assert [line["event"] for line in lines(tmp_path)] == ["click"]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Callable[[bool], None]]:
    """full_disk(True): files of this process can have no more bytes than the largest has now (RLIMIT_FSIZE)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def make(is_full: bool) -> None:
        sizes = [path.stat().st_size for path in tmp_path.glob(FILES)]
        most = max(sizes, default=0) + 40 if is_full else before[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))

    yield make
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_full_disk_loses_feedback_but_not_lists_and_logs_once(
    client: TestClient, tmp_path: Path, full_disk: Callable[[bool], None], caplog: pytest.LogCaptureFixture
) -> None:
    list_id = client.post("/v1/recommendations", json=ASK).json()["list_id"]
    files = [*tmp_path.iterdir()]
    full_disk(True)
    for _ in range(20):
        assert len(client.post("/v1/recommendations", json=ASK).json()["items"]) == 2
        refused = client.post("/v1/feedback", json=CLICK | {"list_id": list_id})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert [*tmp_path.iterdir()] == files  # no file for each try
    assert sum("feedback is lost" in record.message for record in caplog.records) == 1
    assert "convrec_feedback_lost_lines_total 40.0" in client.get("/metrics").text
    full_disk(False)
    assert client.post("/v1/feedback", json=CLICK | {"list_id": list_id}).status_code == 200
    assert [line.get("event") for line in lines(tmp_path)] == [None, "click"]  # no half line is between them
    assert [*tmp_path.iterdir()] == files


def test_unwritable_feedback_folder_is_refused_at_startup(service: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refuses("serving.unusable-feedback-folder", tmp_path / "file" / "state"):
        service(feedback=str(tmp_path / "file" / "state"))
    (tmp_path / "feedback.secret").write_text("short")
    with refuses("serving.damaged-feedback-secret", tmp_path / "feedback.secret"):
        service(feedback=str(tmp_path))


def test_feedback_on_unserved_lists_and_repeats_is_refused(service: Callable[..., Any], tmp_path: Path) -> None:
    def started() -> TestClient:
        return TestClient(service(feedback=str(tmp_path)), base_url="http://localhost")

    with started() as client:
        list_id = client.post("/v1/recommendations", json=ASK).json()["list_id"]
        forged = list_id[:-1] + ("0" if list_id[-1] != "0" else "1")
        for other in (forged, LIST_ID, "list-" + list_id[21:] + list_id[5:21]):
            assert error_of(client.post("/v1/feedback", json=CLICK | {"list_id": other}), 404)["param"] == "list_id"
        click = CLICK | {"list_id": list_id}
        for event, status in (
            (click, 200),
            (click, 409),
            (click | {"event": "like"}, 200),
            (click | {"item_id": "0"}, 200),
            (click | {"event_id": "e-1"}, 200),
            (click | {"event_id": "e-1", "item_id": "0"}, 409),
            (click | {"event_id": "e-2"}, 200),
        ):
            assert client.post("/v1/feedback", json=event).status_code == status, event
        assert 'convrec_feedback_events_total{event="click"} 4.0' in client.get("/metrics").text
    with started() as again, started() as beside:  # after a restart, and of another process of the folder
        for event_id, client in (("e-3", again), ("e-4", beside)):
            assert client.post("/v1/feedback", json=click | {"event_id": event_id}).status_code == 200
            assert client.post("/v1/feedback", json=CLICK | {"list_id": forged}).status_code == 404
    assert len(lines(tmp_path)) == 1 + 5 + 2
    assert (tmp_path / "feedback.secret").stat().st_mode & 0o777 == 0o600


def test_list_memory_is_bounded_and_evicted_lists_take_feedback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recipes.serving.feedback.MAX_LISTS", 3)
    log = FeedbackLog(tmp_path)
    shown = [a_list(number, items=1) | {"list_id": log.make_list_id()} for number in range(5)]
    for one in shown:
        log.add_list(ASK, one)
    assert list(log._shown) == [one["list_id"] for one in shown[2:]]
    for one in shown:
        asyncio.run(log.add_event(FeedbackEvent(list_id=one["list_id"], item_id="0", event="click")))
