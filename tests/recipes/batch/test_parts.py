"""Parts of a request are stored, resumed, and not mixed with those of another request."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recipes.batch.chats import Chat
from recipes.batch.parts import SCHEMA, Parts
from tests.user_errors import refuses

CHATS = [Chat(row, None, "USER: hi\n", {}) for row in range(5)]


def table(chats: list[Chat]) -> pa.Table:
    reason = {True: "too few", False: None}
    return pa.Table.from_pylist([{"row": chat.row, "reason": reason[chat.row == 3]} for chat in chats], SCHEMA)


def missing(parts: Parts) -> list[list[Chat]]:
    return list(parts.iter_missing(iter(CHATS)))


def test_a_stopped_request_goes_on_and_ends_in_order(tmp_path: Path) -> None:
    out = tmp_path / "lists.parquet"
    parts = Parts(out, {"k": 5}, size=2)
    assert not parts.is_done()
    assert parts.begin() is False
    assert missing(parts) == [CHATS[:2], CHATS[2:4], CHATS[4:]]
    parts.write_part(table(CHATS[4:]))
    again = Parts(out, {"k": 5}, size=2)
    assert again.begin() is False
    assert (again.count_rows(), missing(again)) == (1, [CHATS[:2], CHATS[2:4]])
    with refuses("recommend.missing-parts", "lists.parquet.parts", 1, 5):
        again.finish(rows=5)
    for chats in reversed(missing(again)):
        again.write_part(table(chats))
    assert again.finish(rows=5) == 1
    assert pq.read_table(out)["row"].to_pylist() == [0, 1, 2, 3, 4]
    assert again.is_done()
    assert list(tmp_path.iterdir()) == [out]


def test_another_request_is_not_mixed_with_it(tmp_path: Path) -> None:
    out = tmp_path / "lists.parquet"
    parts = Parts(out, {"k": 5}, size=5)
    parts.begin()
    parts.write_part(table(CHATS))
    other = Parts(out, {"k": 6}, size=5)
    assert other.begin() is True
    assert other.count_rows() == 0
    other.write_part(table(CHATS))
    other.finish(rows=5)
    with refuses("recommend.other-output", out):
        parts.is_done()


def test_a_second_process_of_the_same_lists_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "new" / "lists.parquet"
    parts = Parts(out, {"k": 5}, size=5)
    with (
        parts.lock(),
        refuses("recommend.locked-output", out),
        Parts(out, {"k": 5}, size=5).lock(),
    ):
        pass
    with parts.lock():
        pass
    assert list(out.parent.iterdir()) == []


def test_a_file_that_is_no_table_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "lists.parquet").write_text("mine")
    with refuses("recommend.other-output", tmp_path / "lists.parquet"):
        Parts(tmp_path / "lists.parquet", {}, size=1).is_done()
