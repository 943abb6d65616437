"""Slack's files: threads over days, and askers outside of threads."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from convrec.data.damage import Damage
from data_prep.own_data.conversations import UnreadColumns, read_conversations
from data_prep.own_data.forms.base import ReadContext


def message(user: str, text: str, ts: str, **more: Any) -> dict[str, Any]:
    bot = {"bot_id": "B1"} if user == "UBOT" else {}
    return {"type": "message", "user": user, "text": text, "ts": ts} | bot | more


def read(folder: Path, **days: list[dict[str, Any]]) -> tuple[list[list[str]], Counter[str]]:
    files = {}
    for day, messages in days.items():
        path = folder / f"{day}.json"
        path.write_text(json.dumps(messages))
        files[path] = "slack"
    reading, damage = ReadContext(), Damage()
    said = [
        [turn["content"] for turn in record["conversation"]]
        for *_, record in read_conversations(files, {}, reading, damage, UnreadColumns())
    ]
    assert not damage
    return said, reading.left_out


def test_a_thread_over_two_files_is_one_conversation_in_order(tmp_path: Path) -> None:
    thread = {"thread_ts": "1700000000.1"}
    said, _ = read(
        tmp_path,
        day2=[message("U1", "third", "1700080001.1", **thread), message("UBOT", "second", "1700080000.1", **thread)],
        day1=[message("U1", "first", "1700000000.1", **thread)],
    )
    assert said == [["first", "second", "third"]]


def test_a_thread_without_its_first_message_is_left_out(tmp_path: Path) -> None:
    thread = {"thread_ts": "1700000000.1"}
    said, left_out = read(tmp_path, day2=[message("UBOT", "answer", "1700080000.1", **thread)])
    assert said == []
    assert left_out["threads whose first message is missing"] == 1


def test_askers_outside_of_threads_are_not_one_prompt(tmp_path: Path) -> None:
    said, left_out = read(
        tmp_path,
        day=[
            message("U1", "a1", "1700000000.1"),
            message("U2", "b1", "1700000001.1"),
            message("UBOT", "<@U2> to b", "1700000002.1"),
            message("UBOT", "to a", "1700000003.1"),
            message("U3", "lunch?", "1700000004.1"),
        ],
    )
    assert said == [["a1", "to a"], ["b1", "<@U2> to b"]]
    assert left_out == {"conversations in which nobody recommends (name the recommender with --recommender NAME)": 1}
