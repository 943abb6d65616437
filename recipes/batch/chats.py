"""Conversations to recommend for, from JSONL, CSV or parquet; no ground truth is needed."""

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

# Of one meaning each; the second ones are the names in the parquet of training and evaluation.
CONVERSATION = ("conversation", "messages", "prompt")
NAME = ("id", "sample_id")
SEEN = ("seen", "seen_titles")
KEYS = (*CONVERSATION, *NAME, *SEEN, "allow", "exclude", "where", "liked")


class Chat(NamedTuple):
    """row: its number in the file, from 0. conversation: "USER: ...\\nSYSTEM: ...\\nUSER: ...\\n"."""

    row: int
    id: str | None
    conversation: str
    filters: Filters


def read_chats(path: Path, unread: set[str] | None = None, columns: pa.Schema | None = None) -> Iterator[Chat]:
    """The file's rows. unread: gets the names of columns that are not read. columns: of the catalog, for `where`; None:
    it was checked before.

    Raises UserError for the file, and at its end for all of its damaged rows, up to 20 of them named.
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
        raise UserError(f"{path}: no conversations; check how the file was written")


def _read(row: int, record: Mapping[str, Any], columns: pa.Schema | None) -> Chat:
    conversation = _get_alias_value(record, CONVERSATION)
    if conversation is None:
        raise BadRecord("no conversation; write it under conversation or messages (docs/how-to/recommend-file.md)")
    try:
        text = conversation_text(_without_instruction(conversation))
        where = record.get("where")
        where = json.loads(where) if isinstance(where, str) else where  # of a table, whose cells are texts
        if columns is not None and where is not None:
            find_items(where, columns, (), lambda _, kind: pa.array([], kind))
    except json.JSONDecodeError as error:
        raise BadRecord("where is no JSON (%s)", error) from None
    except UserError as error:
        raise BadRecord(str(error)) from None
    name = next((record[key] for key in NAME if record.get(key) is not None), None)
    allow = _names(record.get("allow"), "allow") if record.get("allow") is not None else None
    seen = _names(_get_alias_value(record, SEEN), "seen")
    if record.get("seen_titles") is not None:  # 300 is the film, not the item of that id or row
        seen = [Title(title) for title in seen]
    exclude, liked = (_names(record.get(key), key) for key in ("exclude", "liked"))
    filters = Filters(seen=seen, allow=allow, exclude=exclude, where=where, liked=liked)
    return Chat(row, None if name is None else str(name), text, filters)


def _without_instruction(conversation: Any) -> Any:
    """Of a training table's prompt, one message with an instruction, its conversation."""
    if isinstance(conversation, list) and len(conversation) == 1 and isinstance(conversation[0], dict):
        content = conversation[0].get("content")
        if isinstance(content, str) and CONVERSATION_MARKER in content:
            return split_prompt(content)[1]
    return conversation


def _get_alias_value(record: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    given = [key for key in keys if record.get(key) is not None]
    if len(given) > 1:
        raise BadRecord(f"both {given[0]} and {given[1]}, which are the same; keep one")
    return record[given[0]] if given else None


def _names(value: Any, key: str) -> list[str | int]:
    """Items as ids or `Title (Year)`; in CSV a JSON list, or with `|` or line breaks between them."""
    if value is None:
        return []
    entries = value
    if isinstance(value, str):
        entries = split_lines("|".join(value.splitlines()), "|")
        with suppress(ValueError, RecursionError):  # [REC] is a title
            entries = json.loads(value) if value.lstrip().startswith("[") else entries
    if not isinstance(entries, list) or any(isinstance(e, bool) or not isinstance(e, str | int) for e in entries):
        raise BadRecord(f"{key} is %r; write a list of item ids or of `Title (Year)`", value)
    return list(entries)
