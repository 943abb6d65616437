"""Conversations from files: what is read, and how damage is reported."""

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.data.schema import format_prompt
from convrec.inference.served_catalog.items import ServedCatalog
from convrec.inference.served_catalog.snapshot import Title
from convrec.lists.settings import ListSettings
from recipes.batch.chats import Chat, read_chats
from recipes.batch.parts import SCHEMA
from recipes.batch.replicas import find_unknown_names
from recipes.recommend import report_unknown_items
from tests.user_errors import refuses

TURNS = [{"role": "user", "content": "Something funny."}]
TEXT = "USER: Something funny.\n"
NOTHING = {"seen": [], "allow": None, "exclude": [], "where": None, "liked": []}


def chats(path: Path, *records: Any) -> list[Chat]:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return list(read_chats(path))


def test_all_forms_of_a_conversation_are_read_alike(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": format_prompt(TEXT)}]
    forms = ({"conversation": TURNS}, {"messages": TURNS}, {"conversation": TEXT}, {"conversation": "Something funny."})
    of_lines = chats(tmp_path / "chats.jsonl", *forms, {"prompt": prompt, "sample_id": "s", "seen_titles": ["Up"]})
    assert [chat.conversation for chat in of_lines] == [TEXT] * 5
    assert [chat.row for chat in of_lines] == [0, 1, 2, 3, 4]
    assert (of_lines[4].id, of_lines[4].filters["seen"]) == ("s", ["Up"])
    rows = [{"conversation": TURNS, "id": 7, "seen": ["a"], "allow": None, "exclude": [], "day": 1}] * 2
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chats.parquet")
    assert list(read_chats(tmp_path / "chats.parquet")) == [
        Chat(n, "7", TEXT, NOTHING | {"seen": ["a"]}) for n in (0, 1)
    ]
    (tmp_path / "chats.csv").write_text("conversation,id,seen,allow\nSomething funny.,7,a | b,c\n")
    assert list(read_chats(tmp_path / "chats.csv")) == [
        Chat(0, "7", TEXT, NOTHING | {"seen": ["a", "b"], "allow": ["c"]})
    ]


def test_seen_titles_are_titles_and_numbers_stay_numbers(tmp_path: Path) -> None:
    records = ({"conversation": "hi", "seen_titles": ["300", 9]}, {"conversation": "hi", "seen": ["300", 9]})
    titles, names = (chat.filters["seen"] for chat in chats(tmp_path / "chats.jsonl", *records))
    assert [(type(entry), entry) for entry in titles] == [(Title, "300"), (Title, "9")]
    assert [(type(entry), entry) for entry in names] == [(str, "300"), (int, 9)]
    (tmp_path / "chats.csv").write_text("conversation,seen_titles,exclude\nhi,300 | 9,3\n")
    (chat,) = read_chats(tmp_path / "chats.csv")
    assert [type(entry) for entry in (*chat.filters["seen"], *chat.filters["exclude"])] == [Title, Title, str]
    (again,) = pickle.loads(pickle.dumps([chat]))  # as replicas get it
    assert [(type(entry), entry) for entry in again.filters["seen"]] == [(Title, "300"), (Title, "9")]


def test_where_conditions_are_checked_before_anything_starts(tmp_path: Path) -> None:
    columns = pa.schema([("price", pa.float64()), ("category", pa.string())])
    where = {"price": {"max": 20}, "category": ["Mystery"]}
    (tmp_path / "a.jsonl").write_text(json.dumps({"conversation": "hi", "where": where, "liked": ["Up", 3]}))
    (tmp_path / "a.csv").write_text(
        'conversation,where\nhi,"{""price"": {""max"": 20}, ""category"": [""Mystery""]}"\n'
    )
    for file in ("a.jsonl", "a.csv"):
        (chat,) = read_chats(tmp_path / file, None, columns)
        assert chat.filters["where"] == where
    (chat,) = read_chats(tmp_path / "a.jsonl", None, columns)
    assert chat.filters["liked"] == ["Up", 3]
    bad = [{"prize": 1}, {"price": "cheap"}, "no JSON", 5]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"conversation": "hi", "where": one}) + "\n" for one in bad))
    with pytest.raises(UserError) as error:
        list(read_chats(tmp_path / "b.jsonl", None, columns))
    for words in ("did you mean price?", "'cheap'", "where is not JSON", "where: "):
        assert words in str(error.value)
    with pytest.raises(UserError, match="'price'"):
        list(read_chats(tmp_path / "a.jsonl", None, pa.schema([])))


@pytest.mark.parametrize(
    "cell", ["Heat (1995) | [REC] (2007)", "Heat (1995)\n[REC] (2007)\r\n", '["Heat (1995)", "[REC] (2007)"]']
)
def test_a_cell_of_a_table_holds_several_names(tmp_path: Path, cell: str) -> None:
    quoted = cell.replace('"', '""')
    (tmp_path / "chats.csv").write_text(f'conversation,seen\nhi,"{quoted}"\nhi,[REC] (2007)\n', newline="")
    assert [chat.filters["seen"] for chat in read_chats(tmp_path / "chats.csv")] == [
        ["Heat (1995)", "[REC] (2007)"],
        ["[REC] (2007)"],
    ]


@pytest.mark.parametrize(
    ("seen", "unknown"),
    [
        (["Heat (1995)", "b", 300, "Amelie"], []),
        (["Heat (1995), Up (2009)", "Heat (1959)", "zz", 7], ["Heat (1995), Up (2009)", "Heat (1959)", "zz", "7"]),
    ],
)
def test_names_outside_the_catalog_are_reported(
    tmp_path: Path, line_tokenizer: Any, capsys: pytest.CaptureFixture[str], seen: list, unknown: list
) -> None:
    file, titles = tmp_path / "catalog.parquet", ["Heat", "Up", "Amélie"]
    table = {"item_id": ["b", "300", "d"], "title": titles, "year": pa.array([1995, 2009, 2001], pa.int32())}
    pq.write_table(pa.table(table), file)
    folder = tmp_path / "tries"
    catalog = ServedCatalog(file, line_tokenizer, ListSettings(), folder, max_items=3, max_tokens=1000)
    filters = {"seen": seen[:1], "allow": seen[1:2], "exclude": seen[2:3], "liked": seen[3:]}
    chat = Chat(0, None, TEXT, NOTHING | filters)
    assert find_unknown_names(chat, catalog) == unknown
    lists = tmp_path / "lists.parquet"
    pq.write_table(pa.Table.from_pylist([{"row": 0, "unknown": unknown}, {"row": 1}], SCHEMA), lists)
    report_unknown_items(lists)
    printed = capsys.readouterr().err
    assert printed.startswith(f"{lists}: 4 names ") == bool(unknown)
    assert all(repr(name) in printed for name in unknown)


def test_other_columns_are_named(tmp_path: Path) -> None:
    unread: set[str] = set()
    (tmp_path / "chats.jsonl").write_text(json.dumps({"conversation": "hi", "sean": ["Up"], "time": 3}))
    assert len(list(read_chats(tmp_path / "chats.jsonl", unread))) == 1
    assert unread == {"sean", "time"}
    pq.write_table(pa.Table.from_pylist([{"conversation": "hi", "day": 1}]), tmp_path / "chats.parquet")
    assert len(list(read_chats(tmp_path / "chats.parquet", unread))) == 1
    assert unread == {"sean", "time", "day"}


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"id": 1}, "no conversation"),
        ({"conversation": "hi", "messages": TURNS}, "both conversation and messages"),
        ({"conversation": [{"role": "system", "content": "50% off"}]}, "'system'"),
        ({"conversation": "hi", "seen": [1.5]}, "seen is [1.5]"),
        ({"conversation": "hi", "allow": {"a": 1}}, "allow is {'a': 1}"),
    ],
)
def test_a_damaged_row_is_named(tmp_path: Path, record: dict, problem: str) -> None:
    with pytest.raises(UserError) as error:
        chats(tmp_path / "chats.jsonl", {"conversation": "hi"}, record)
    assert f"{tmp_path / 'chats.jsonl'}: line 2: " in str(error.value)
    assert problem in str(error.value)


def test_a_file_without_conversations_is_refused(tmp_path: Path) -> None:
    with refuses("recommend.no-conversations", tmp_path / "chats.jsonl"):
        chats(tmp_path / "chats.jsonl")
