"""Conversations without ground truth, from JSONL, CSV or parquet."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from convrec.base.errors import UserError
from convrec.data.damage import BadRecord, Damage
from convrec.data.records import read_records
from convrec.data.schema import CONVERSATION_MARKER, split_prompt
from convrec.inference.conversation import conversation_text
from convrec.inference.lists import Filters
from convrec.inference.served_catalog.columns import find_items
from convrec.inference.served_catalog.snapshot import Title
from convrec.lists.ranks import split_lines

# Alternative names of a column; the later ones are those in parquet files of training and evaluation.
CONVERSATION = ("conversation", "messages", "prompt")
NAME = ("id", "sample_id")
SEEN = ("seen", "seen_titles")
KEYS = (*CONVERSATION, *NAME, *SEEN, "allow", "exclude", "where", "liked")


class Chat(NamedTuple):
    """A conversation to recommend for.

    Attributes:
        row: number in the file, from 0.
        id: the file's own, if it has any.
        conversation: "USER: ...\\nSYSTEM: ...\\nUSER: ...\\n".
        filters: seen, allowed, excluded and liked items, and `where`.
    """

    row: int
    id: str | None
    conversation: str
    filters: Filters


def read_chats(path: Path, unread: set[str] | None = None, columns: pa.Schema | None = None) -> Iterator[Chat]:
    """Read a file's conversations.

    Args:
        path: JSONL, CSV or parquet file.
        unread: set to which the names of ignored columns are added.
        columns: of the catalog, to check `where`; None: it has been checked before.

    Raises:
        UserError: The file cannot be read or has no conversations; after the last row also for damaged rows, of which
            the message names up to 20.
    """
    damage = Damage()
    sound = 0
    for row, (number, record) in enumerate(read_records(path, damage)):
        if unread is not None:
            unread.update(name for name in record if name not in KEYS)
        try:
            yield _read(row, record, columns)
            sound += 1
        except BadRecord as problem:
            damage.add(path, number, problem)
    damage.check([path], sound)
    if not sound:
        raise UserError("recommend.no-conversations", f"{path}: no conversations. Check how the file was written.")


def _read(row: int, record: Mapping[str, Any], columns: pa.Schema | None) -> Chat:
    conversation = _get_alias_value(record, CONVERSATION)
    if conversation is None:
        raise BadRecord(
            "recommend.no-conversation",
            "no conversation; write it under conversation or messages (docs/how-to/recommend-file.md)",
        )
    try:
        text = conversation_text(_strip_instruction(conversation))
        where = record.get("where")
        where = json.loads(where) if isinstance(where, str) else where  # cells of a table are texts
        if columns is not None and where is not None:
            find_items(where, columns, (), lambda _, kind: pa.array([], kind))
    except json.JSONDecodeError as error:
        raise BadRecord("recommend.invalid-json", "where is not JSON (%s)", error) from None
    except UserError as error:
        raise BadRecord(error.code, str(error)) from None
    name = next((record[key] for key in NAME if record.get(key) is not None), None)
    allow = _read_names(record.get("allow"), "allow") if record.get("allow") is not None else None
    seen = _read_names(_get_alias_value(record, SEEN), "seen")
    if record.get("seen_titles") is not None:  # here 300 is the film, not the item with that id or row
        seen = [Title(title) for title in seen]
    exclude, liked = (_read_names(record.get(key), key) for key in ("exclude", "liked"))
    filters = Filters(seen=seen, allow=allow, exclude=exclude, where=where, liked=liked)
    return Chat(row, None if name is None else str(name), text, filters)


def _strip_instruction(conversation: Any) -> Any:
    """Return the conversation in a training table's prompt, a single message that starts with the instruction."""
    if isinstance(conversation, list) and len(conversation) == 1 and isinstance(conversation[0], dict):
        content = conversation[0].get("content")
        if isinstance(content, str) and CONVERSATION_MARKER in content:
            return split_prompt(content)[1]
    return conversation


def _get_alias_value(record: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    present = [key for key in keys if record.get(key) is not None]
    if len(present) > 1:
        raise BadRecord("recommend.two-names", f"both {present[0]} and {present[1]}, which mean the same; keep one")
    return record[present[0]] if present else None


def _read_names(value: Any, key: str) -> list[str | int]:
    """Read items as ids or `Title (Year)`; in CSV a JSON list, or separated by `|` or line breaks."""
    if value is None:
        return []
    entries = value
    if isinstance(value, str):
        entries = split_lines("|".join(value.splitlines()), "|")
        with suppress(ValueError, RecursionError):  # [REC] is a title
            entries = json.loads(value) if value.lstrip().startswith("[") else entries
    if not isinstance(entries, list) or any(
        isinstance(entry, bool) or not isinstance(entry, str | int) for entry in entries
    ):
        raise BadRecord("recommend.not-a-list", f"{key} is %r; write a list of item ids or of `Title (Year)`", value)
    return list(entries)
