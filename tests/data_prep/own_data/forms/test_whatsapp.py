"""WhatsApp chats in several languages: speakers, notices, and where conversations end."""

from collections import Counter
from pathlib import Path

import pytest

from convrec.data.damage import Damage
from data_prep.own_data.conversations import UnreadColumns, guess_form, read_conversations
from data_prep.own_data.forms.base import ReadContext, Speakers


def read(path: Path, *lines: str) -> tuple[list[list[str]], Counter[str]]:
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    assert guess_form(path, {}) == "whatsapp"
    reading, damage = ReadContext(Speakers(["bob"])), Damage()
    said = [
        [f"{turn['role'][0]} {turn['content']}" for turn in record["conversation"]]
        for *_, record in read_conversations({path: "whatsapp"}, {}, reading, damage, UnreadColumns())
    ]
    assert not damage
    return said, reading.left_out


@pytest.mark.parametrize(
    "stamps",
    [
        ("12/31/23, 9:42\u202fPM - ", "12/31/23, 9:44\u202fPM - "),
        ("31.12.23, 21:42 - ", "31.12.23, 21:44 - "),
        ("31/12/2023 à 21:42 - ", "31/12/2023 à 21:44 - "),
        ("31/12/2023 21:42 - ", "31/12/2023 21:44 - "),
        ("31/12/23, 9:42 p. m. - ", "31/12/23, 9:44 p. m. - "),
        ("2023-12-31 21:42 - ", "2023-12-31 21:44 - "),
        ("[2023/12/31 下午9:42:00] ", "[2023/12/31 下午9:44:00] "),
        ("[31.12.23, 21:42:00] ", "\u200e[31.12.23, 21:44:00] "),
        ("31.12.2023 klo 21.42 - ", "31.12.2023 klo 21.44 - "),
    ],
)
def test_every_phone_writes_dates_in_its_own_way(tmp_path: Path, stamps: tuple[str, str]) -> None:
    first, second = stamps
    assert read(tmp_path / "a.txt", f"{first}Ann: Hi", "all", f"{second}Bob: Up")[0] == [["u Hi\nall", "a Up"]]


@pytest.mark.parametrize(
    "notice",
    [
        "Ann: <Media omitted>",
        "Ann: <Medien ausgeschlossen>",
        "Ann: <Mídia oculta>",
        "Ann: Diese Nachricht wurde gelöscht.",
        "Ann: Se eliminó este mensaje.",
        "Ann: \u200eimage omitted",
        "Ann: IMG-20240101-WA0001.jpg (Datei angehängt)",
        "Ann: IMG-20240101-WA0001.jpg (file attached)",
        "Ann hat den Gruppennamen zu „Filme: neu“ geändert.",
        "Ann a changé le sujet en « Films : tous »",
        'Ann changed the subject from "Heat: 1" to "Films: best"',
        "Nachrichten und Anrufe sind Ende-zu-Ende-verschlüsselt.",
    ],
)
def test_notices_in_any_language_are_no_turns(tmp_path: Path, notice: str) -> None:
    lines = ["31.12.23, 21:42 - Ann: Hi", f"31.12.23, 21:43 - {notice}", "31.12.23, 21:44 - Bob: Up"]
    said, left_out = read(tmp_path / "a.txt", *lines)
    assert said == [["u Hi", "a Up"]]
    assert left_out == {"tool calls, tool results and turns without text": 1}


def test_that_a_message_was_edited_is_not_part_of_it(tmp_path: Path) -> None:
    lines = ["31.12.23, 21:42 - Ann: I <3 Up <Diese Nachricht wurde bearbeitet.>", "31.12.23, 21:44 - Bob: Up"]
    assert read(tmp_path / "a.txt", *lines)[0] == [["u I <3 Up", "a Up"]]


@pytest.mark.parametrize(
    "days",
    [
        ("12/31/23, 11:58 PM", "1/1/24, 12:01 AM"),
        ("31.12.23, 23:58", "01.01.24, 00:01"),
        ("1/2/24, 23:58", "2/2/24, 0:01"),
    ],
)
def test_midnight_ends_no_conversation(tmp_path: Path, days: tuple[str, str]) -> None:
    before, after = days
    lines = [f"{before} - Ann: Hi", f"{after} - Bob: Up", f"{after} - Ann: Seen"]
    assert read(tmp_path / "a.txt", *lines)[0] == [["u Hi", "a Up", "u Seen"]]


def test_new_day_starts_a_conversation_unless_it_is_the_answer(tmp_path: Path) -> None:
    lines = ["1.2.24, 9:00 - Ann: Hi", "1.2.24, 9:01 - Bob: Up", "2.2.24, 9:00 - Ann: And?", "3.2.24, 8:00 - Bob: Coco"]
    assert read(tmp_path / "a.txt", *lines)[0] == [["u Hi", "a Up"], ["u And?", "a Coco"]]


def test_people_of_a_group_have_a_conversation_each(tmp_path: Path) -> None:
    lines = [
        "31.12.23, 21:42 - Ann: Hi", "31.12.23, 21:44 - Bob: Up", "31.12.23, 21:45 - +49 170 1234567: Me too",
        "31.12.23, 21:46 - Bob: Coco",
    ]  # fmt: skip
    assert read(tmp_path / "a.txt", *lines)[0] == [["u Hi", "a Up"], ["u Me too", "a Coco"]]
