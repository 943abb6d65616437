"""Tables with one row per turn, or one column per speaker; the names of their columns are guessed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.data.damage import BadRecord
from data_prep.own_data.forms.base import (
    INSTRUCTION,
    NAMES,
    ROLES,
    TOOL,
    Candidate,
    Dialog,
    Form,
    LocatedRecord,
    ReadContext,
    Record,
    Speakers,
    make_turn,
    normalise_name,
)
from data_prep.own_data.forms.sharegpt import TOOL_SPEAKERS
from data_prep.own_data.forms.turn_order import TurnOrder
from data_prep.own_data.ids import make_truncated_id_error, normalise_id

_ITEMS = ("movies", "movie_dict")  # INSPIRED's columns for the items that a turn names
_INSTRUCTIONS = ("system", "developer")
_YES = frozenset({"true", "yes", "1", "t", "y"})
_NO = frozenset({"false", "no", "0", "f", "n"})


@dataclass(frozen=True)
class _Columns:
    """The names of a table's columns.

    Attributes:
        conversation: the column of conversation ids; "" if there is none.
        speakers: columns that identify the speaker, e.g. a name and a role; the first is filled in every row.
        text: the column of the text; "" if there is none.
        is_internal: whether a row is a note that the user does not see.
    """

    conversation: str
    speakers: Sequence[str]
    text: str
    is_internal: Callable[[Record], bool]

    def read_speakers(self, record: Record) -> list[Any]:
        return [record[name] for name in self.speakers if record.get(name) is not None]


def find_turn_dialogs(records: Sequence[LocatedRecord], reading: ReadContext) -> Iterator[Candidate]:
    """Yield the conversations of a table with one row per turn.

    Args:
        records: all rows of a file.
        reading: gets a note that says which column names the conversation.

    Raises:
        UserError: No column says which conversation a row belongs to.
    """
    path = records[0].path
    names = list(dict.fromkeys(name for row in records for name in row.record))
    columns = _Columns(
        conversation=_find_column(names, "conversation_id"),
        speakers=_find_columns(names, "speaker"),
        text=_find_column(names, "text"),
        is_internal=_find_internal(records, names),
    )
    if not columns.conversation and not reading.one_conversation:
        raise UserError("conversations.no-conversation-id", _describe_missing_column(path, names, records, columns))
    order = TurnOrder.find(records, names, reading.keeps_order)
    if columns.conversation:
        note = f"{path}: rows with the same {columns.conversation} are one conversation, {order.describe()}"
        reading.notes[f"{note} (--columns conversation_id=NAME,order=NAME)"] = None
    find_role = _find_roles(records, columns, reading.speakers)
    for group in _group(records, columns.conversation):
        yield Candidate(group, _make_turn_reader(group, columns, order, find_role))


def find_column_dialogs(records: Sequence[LocatedRecord], reading: ReadContext) -> Iterator[Candidate]:
    """Yield the conversations of a table with one column per speaker.

    A row has one or more turns in the order of the columns; without an id it is a whole conversation.

    Args:
        records: all rows of a file.
        reading: gets a note if no column names the conversation.
    """
    names = list(dict.fromkeys(name for row in records for name in row.record))
    conversation = _find_column(names, "conversation_id")
    order = TurnOrder.find(records, names, reading.keeps_order)
    if not conversation:
        note = "every row is a conversation (--columns conversation_id=NAME joins rows with the same id)"
        reading.notes[f"{records[0].path}: {note}"] = None
    for group in _group(records, conversation) if conversation else [[row] for row in records]:
        yield Candidate(group, _make_column_reader(group, conversation, order))


def _find_columns(names: Sequence[str], what: str) -> list[str]:
    plain_names = {normalise_name(name): name for name in reversed(names)}
    return [plain_names[name] for name in NAMES[what] if name in plain_names]


def _find_column(names: Sequence[str], what: str) -> str:
    return next(iter(_find_columns(names, what)), "")


def _find_internal(records: Sequence[LocatedRecord], names: Sequence[str]) -> Callable[[Record], bool]:
    """Return a predicate for internal notes, by a column that says so for some rows but not for others."""
    for what, answer in (("public", _NO), ("internal", _YES)):
        column = _find_column(names, what)
        if not column:
            continue
        answers = {normalise_name(row.record.get(column)) for row in records}
        if answers & _YES and answers & _NO:
            return lambda record: normalise_name(record.get(column)) in answer
    return lambda record: False


def _group(rows: Sequence[LocatedRecord], column: str) -> list[list[LocatedRecord]]:
    """Group the rows by conversation; a row with a missing or damaged id stays alone and is reported."""
    groups: dict[object, list[LocatedRecord]] = {}
    for row in rows:
        name = normalise_id(row.record.get(column)) if column else ""
        groups.setdefault((row.row,) if name is None else name, []).append(row)
    return list(groups.values())


def _read_conversation_id(row: LocatedRecord, column: str) -> str | None:
    if not column:
        return None
    value = row.record.get(column)
    name = normalise_id(value)
    if name is None and value is None:
        raise BadRecord(
            "turns.no-conversation-id",
            "no %s, so it is unknown which conversation the row belongs to; fill it in",
            column,
        )
    if name is None:
        raise make_truncated_id_error(value, column)
    return name


def _make_turn_reader(
    group: Sequence[LocatedRecord], columns: _Columns, order: TurnOrder, find_role: Callable[[Record], str]
) -> Callable[[], Dialog]:
    def read() -> Dialog:
        name = _read_conversation_id(group[0], columns.conversation)
        rows = order.sort(group)
        has_items = any(row.record.keys() & set(_ITEMS) for row in rows)
        turns = []
        for row in rows:
            if not columns.read_speakers(row.record):
                raise BadRecord("turns.no-speaker", "row %s has no %s; fill it in", row.row, columns.speakers[0])
            role = TOOL if columns.is_internal(row.record) else find_role(row.record)
            items = row.record.get(_ITEMS[0], []) if has_items else None
            turns.append(make_turn(role, row.record.get(columns.text), items))
        return Dialog(turns, name, order.get_time(rows[0]))

    return read


def _make_column_reader(group: Sequence[LocatedRecord], conversation: str, order: TurnOrder) -> Callable[[], Dialog]:
    def read() -> Dialog:
        name = _read_conversation_id(group[0], conversation)
        rows = order.sort(group)
        cells = [(_find_column_role(column), text) for row in rows for column, text in row.record.items()]
        roles = {role for role, _ in cells}
        # `SYSTEM` is the recommender, as in the released data, unless there is another one: then it is an instruction
        system = INSTRUCTION if "assistant" in roles else "assistant"
        turns = [make_turn(system if role == INSTRUCTION else role, text) for role, text in cells if role]
        return Dialog(turns, name, order.get_time(rows[0]))

    return read


def _find_column_role(column: str) -> str | None:
    name = normalise_name(column)
    return INSTRUCTION if name == INSTRUCTION else ROLES.get(name)


def _find_roles(rows: Sequence[LocatedRecord], columns: _Columns, speakers: Speakers) -> Callable[[Record], str]:
    """Return a function that finds a row's role. `SYSTEM` is the recommender if the table has no other."""
    speaker_names = {normalise_name(name) for row in rows for name in columns.read_speakers(row.record)}
    has_recommender = any(ROLES.get(name) == "assistant" for name in speaker_names)

    def find_role(record: Record) -> str:
        names = columns.read_speakers(record)
        for name in map(normalise_name, names):
            if name in TOOL_SPEAKERS or name == TOOL:
                return TOOL
            if name in _INSTRUCTIONS:
                return INSTRUCTION if has_recommender or name != INSTRUCTION else "assistant"
        return speakers.find_role(*names)

    return find_role


def _describe_missing_column(path: Path, names: Sequence[str], rows: Sequence[LocatedRecord], columns: _Columns) -> str:
    """Explain what to do if no column identifies conversations, and suggest one that may."""
    likely = next((name for name in names if _may_name_conversations(name, rows, columns)), "NAME")
    return (
        f"{path}: rows are turns, but no column is known to identify the conversation (the columns are "
        f"{', '.join(names)}); name it: --columns conversation_id={likely}, or give --one-conversation if all rows are "
        "one conversation"
    )


def _may_name_conversations(name: str, rows: Sequence[LocatedRecord], columns: _Columns) -> bool:
    values = [str(row.record.get(name)) for row in rows]
    is_other = name in (*columns.speakers, columns.text)
    return not is_other and 1 < len(set(values)) < len(values) and normalise_name(name) not in NAMES["time"]


def _fits_turns(record: Record) -> bool:
    is_nested = any(isinstance(record.get(name), list) for name in ("conversation", "messages", "turns"))
    return not is_nested and bool(_find_column(list(record), "speaker") and _find_column(list(record), "text"))


def _fits_columns(record: Record) -> bool:
    roles = {_find_column_role(name) for name, value in record.items() if isinstance(value, str)}
    return "user" in roles and bool(roles & {"assistant", INSTRUCTION})


TURN_COLUMNS = frozenset(
    name
    for what in ("conversation_id", "order", "time", "speaker", "text", "message_id", "public", "internal")
    for name in NAMES[what]
)
TURNS = Form(
    fits=_fits_turns,
    reads=TURN_COLUMNS | {*_ITEMS, "moviedict"},
    example="conversation_id,turn_id,role,text\n1,0,user,Something like Heat?\n1,1,assistant,Collateral (2004)",
    find_dialogs=find_turn_dialogs,
)
COLUMNS = Form(
    fits=_fits_columns,
    reads=TURN_COLUMNS | {*ROLES, INSTRUCTION},
    example="conversation_id,user,assistant\n1,Something like Heat?,Collateral (2004)",
    find_dialogs=find_column_dialogs,
)
