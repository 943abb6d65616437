"""Tables with a row per turn: which rows are a conversation, in which order, and who speaks."""

from pathlib import Path
from typing import Any

import pytest

from convrec.data.damage import Damage
from data_prep.own_data.conversations import UnreadColumns, guess_form, read_conversations
from data_prep.own_data.forms.base import ReadContext, Speakers
from tests.user_errors import refuses

ROWS = ["7,user,Like Heat?", "7,bot,Ronin", "8,user,Like Up?", "8,bot,Coco"]
SAID = [["Like Heat?", "Ronin"], ["Like Up?", "Coco"]]


def read(path: Path, content: str, columns: dict[str, str] | None = None, **reading: Any) -> tuple[list, Damage]:
    """Return the texts of each conversation, and the problems."""
    path.write_text(content)
    damage = Damage()
    columns = columns or {}
    files = {path: guess_form(path, columns)}
    records = read_conversations(files, columns, ReadContext(**reading), damage, UnreadColumns())
    return [[turn["content"] for turn in record["conversation"]] for *_, record in records], damage


def table(header: str, *rows: str) -> str:
    return "\n".join([header, *rows, ""])


@pytest.mark.parametrize(
    "name",
    [
        "conversation_id",
        "conversationId",
        "ConversationID",
        "conv_id",
        "convId",
        "conversation",
        "dialog_id",
        "dialogueID",
        "dialogue",
        "session_id",
        "sessionId",
        "Session",
        "thread_id",
        "threadId",
        "ticket",
        "ticket_id",
        "Ticket-Number",
        "chat_id",
        "chatId",
        "transcript_id",
        "case_id",
    ],
)
def test_a_conversation_is_known_by_any_usual_name_of_its_column(tmp_path: Path, name: str) -> None:
    assert read(tmp_path / "a.csv", table(f"{name},role,text", *ROWS))[0] == SAID


def test_table_without_conversation_column_is_refused_with_hint(tmp_path: Path) -> None:
    content = table("cluster,role,text", *ROWS)
    values = ("a.csv", "cluster, role, text", "--columns conversation_id=cluster,")
    with refuses("conversations.no-conversation-id", *values):
        read(tmp_path / "a.csv", content)
    assert read(tmp_path / "a.csv", content, {"conversation_id": "cluster"})[0] == SAID
    assert read(tmp_path / "a.csv", content, one_conversation=True)[0] == [[*SAID[0], *SAID[1]]]
    with refuses("conversations.unknown-column", "conversation_id=clustre", "a.csv"):
        read(tmp_path / "a.csv", table("chat_id,role,text", *ROWS), {"conversation_id": "clustre"})


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        (("1.21E+18", "1.21E+18"), "session_id is '1.21E+18': a spreadsheet dropped its last digits"),
        (("7", ""), "no session_id, so it is unknown which conversation the row belongs to"),
    ],
)
def test_damaged_or_missing_ids_merge_no_rows(tmp_path: Path, ids: tuple[str, str], problem: str) -> None:
    rows = [f"{name},user,Hi" for name in ids]
    said, damage = read(tmp_path / "a.csv", table("session_id,role,text", *rows, *ROWS[2:]))
    assert said[-1] == SAID[1]
    assert problem in str(damage.findings[-1].problem)


def test_ids_that_pandas_made_floats_are_the_same(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", table("id_,chat_id,role,text", "1,7.0,user,Hi", "2,7,bot,Up"))[0] == [["Hi", "Up"]]


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("turn_id", "210"),
        ("turn_id", ("t12", "t9", "t1")),
        ("Turn Number", ("30", "20", "10")),
        ("created_at", [f"2024-03-01T10:0{n}Z" for n in (3, 2, 1)]),
        ("timestamp", ("1700000300", "1700000200", "1700000100")),
        ("date", ("05.02.2021 10:03", "05.02.2021 10:02", "20.01.2021 10:01")),
        ("message_id", ("903", "87", "12")),
        ("id", ("903", "87", "12")),
        ("turn_id", ("2", "1", "1")),  # pairs, the newest first
        ("turn_id", ("1", "1", "1")),  # the same for all rows: no order
    ],
)
def test_turns_are_sorted_by_their_numbers_or_times(tmp_path: Path, header: str, cells: Any) -> None:
    texts = ["third", "second", "first"]
    rows = [f"7,{cell},{role},{text}" for cell, role, text in zip(cells, ("bot", "user", "bot"), texts, strict=True)]
    said, damage = read(tmp_path / "a.csv", table(f"chat_id,{header},role,text", *rows))
    assert not damage
    assert said == [texts if len(set(cells)) == 1 else texts[::-1]]


def test_unordered_rows_with_equal_numbers_use_a_second_column(tmp_path: Path) -> None:
    rows = ["7,2,4,user,d", "7,1,1,user,a", "7,2,3,bot,c", "7,1,2,bot,b"]
    assert read(tmp_path / "a.csv", table("chat_id,turn_id,utt_id,role,text", *rows))[0] == [["a", "b", "c", "d"]]
    said, damage = read(tmp_path / "a.csv", table("chat_id,turn_id,other,role,text", *rows))
    assert said == []
    assert "rows are not in order, and some have the same turn_id; name the column" in str(damage.findings[0].problem)


def test_ids_of_messages_in_no_order_sort_nothing(tmp_path: Path) -> None:
    rows = ["7,903,user,a", "7,12,bot,b", "8,400,user,c", "8,87,bot,d"]
    assert read(tmp_path / "a.csv", table("chat_id,id,role,text", *rows))[0] == [["a", "b"], ["c", "d"]]


def test_contradictory_numbers_and_times_are_refused(tmp_path: Path) -> None:
    rows = ["7,1,2024-03-01T10:03Z,user,a", "7,2,2024-03-01T10:01Z,bot,b"]
    content = table("chat_id,turn_id,created_at,role,text", *rows)
    said, damage = read(tmp_path / "a.csv", content)
    assert said == []
    assert "turn_id rises while created_at falls; name the column" in str(damage.findings[0].problem)
    assert read(tmp_path / "a.csv", content, keeps_order=True)[0] == [["a", "b"]]


@pytest.mark.parametrize("header", ["turn_id", "timestamp"])
def test_unordered_rows_without_a_position_are_refused(tmp_path: Path, header: str) -> None:
    for cells, problems in ((("", "1700000000", "1700000009"), 0), (("1700000009", "1700000000", ""), 1)):
        rows = [f"7,{cell},user,{text}" for cell, text in zip(cells, "abc", strict=True)]
        _, damage = read(tmp_path / "a.csv", table(f"chat_id,{header},role,text", *rows))
        assert len(damage.findings) == problems
        assert not damage or f"rows are not in the order of {header}, which some rows lack" in str(
            damage.findings[0].problem
        )


def test_unreadable_times_are_refused_unless_file_order_rules(tmp_path: Path) -> None:
    content = table("chat_id,time,role,text", "7,noon,user,a", "7,later,bot,b")
    said, damage = read(tmp_path / "a.csv", content)
    assert said == []
    assert "time is 'noon'" in str(damage.findings[0].problem)
    assert "order=- for the order of the file" in str(damage.findings[0].problem)


def test_system_role_is_a_prompt_if_another_role_recommends(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        table("chat_id,role,text", "1,user,hi", "1,bot,Up", "2,user,hi", "2,system,You know Up", "2,user,x")
    )
    records = read_conversations({path: "turns"}, {}, ReadContext(), Damage(), UnreadColumns())
    roles = [[turn["role"] for turn in record["conversation"]] for *_, record in records]
    assert roles == [["user", "assistant"], ["user", "system", "user"]]
    path.write_text(table("chat_id,role,text", "1,USER,hi", "1,SYSTEM,Up"))  # as the released data
    ((*_, record),) = read_conversations({path: "turns"}, {}, ReadContext(), Damage(), UnreadColumns())
    assert [turn["role"] for turn in record["conversation"]] == ["user", "assistant"]


def test_unreadable_row_drops_its_whole_conversation(tmp_path: Path) -> None:
    rows = ["7,user,a", "7,bot,b,c", "7,user,d", "8,user,e", "8,bot,f"]
    said, damage = read(tmp_path / "a.csv", table("chat_id,role,text", *rows))
    assert said == [["e", "f"]]
    assert [finding.row for finding in damage.findings] == [3, 2]
    assert "an adjacent row cannot be read" in str(damage.findings[1].problem)


def test_row_that_swallowed_another_drops_its_conversation(tmp_path: Path) -> None:
    rows = ['7\tuser\t"a', '7\tbot\tb"', "8\tuser\tc", "8\tbot\td"]
    said, damage = read(tmp_path / "a.tsv", table("chat_id\trole\ttext", *rows))
    assert said == [["c", "d"]]
    assert {finding.row for finding in damage.findings} == {2}


def test_conflicting_per_conversation_values_are_refused(tmp_path: Path) -> None:
    rows = ["7,user,a,train", "7,bot,b,test"]
    said, damage = read(tmp_path / "a.csv", table("chat_id,role,text,split", *rows))
    assert said == []
    assert "rows of one conversation have different values for split (row 3)" in str(damage.findings[0].problem)


@pytest.mark.parametrize("header", ["chat_id,user,assistant", "ChatId,Customer,Agent"])
def test_speaker_columns_are_read_with_rows_in_order(tmp_path: Path, header: str) -> None:
    content = table(f"turn,{header}", "2,7,c,d", "1,7,a,b", "1,8,e,f")
    assert read(tmp_path / "a.csv", content)[0] == [["a", "b", "c", "d"], ["e", "f"]]


@pytest.mark.parametrize(
    ("header", "cells"),
    [("Public", ("true", "false", "true")), ("is_internal", ("0", "1", "0")), ("private", ("no", "yes", "no"))],
)
def test_internal_notes_are_no_turns(tmp_path: Path, header: str, cells: tuple[str, ...]) -> None:
    turns = zip(("user", "agent", "agent"), ("Like Heat?", "a regular", "Ronin"), cells, strict=True)
    rows = [f"7,{role},{text},{cell}" for role, text, cell in turns]
    path = tmp_path / "a.csv"
    path.write_text(table(f"ticket,role,comment,{header}", *rows))
    ((*_, record),) = read_conversations({path: "turns"}, {}, ReadContext(), Damage(), UnreadColumns())
    assert [turn["role"] for turn in record["conversation"]] == ["user", "tool", "assistant"]
    path.write_text(table(f"ticket,role,comment,{header}", *(row.replace(cells[0], cells[1]) for row in rows)))
    ((*_, record),) = read_conversations({path: "turns"}, {}, ReadContext(), Damage(), UnreadColumns())
    assert [turn["role"] for turn in record["conversation"]] == ["user", "assistant", "assistant"]  # nothing differs


@pytest.mark.parametrize("header", ["author,author_role", "sender,role", "from,sender type"])
def test_role_column_decides_who_recommends_over_names(tmp_path: Path, header: str) -> None:
    rows = ["7,Ann,end-user,Like Heat?", "7,Bob,agent,Ronin"]
    path = tmp_path / "a.csv"
    path.write_text(table(f"ticket,{header},text", *rows))
    for speakers in (Speakers(), Speakers(["Bob"])):
        ((*_, record),) = read_conversations({path: "turns"}, {}, ReadContext(speakers), Damage(), UnreadColumns())
        assert [turn["role"] for turn in record["conversation"]] == ["user", "assistant"]
