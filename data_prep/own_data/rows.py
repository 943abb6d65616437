"""A record of one's own conversations: what it holds, what is said of a damaged one. docs/how-to/data.md has the keys
and the forms of an item; in CSV a conversation is a text, and items have `|` between them."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, NamedTuple

from convrec.data.damage import BadRecord, column
from convrec.data.schema import SPEAKERS, TURN, Pair
from convrec.lists.catalog import NEWEST_YEAR, OLDEST_YEAR, Catalog, parse_year
from convrec.lists.matching import Matcher
from convrec.lists.ranks import NO_YEAR, Item, format_item, parse_item, split_lines
from data_prep.own_data.catalog import ItemIds

KEYS = ("conversation", "ground_truth", "seen", "demonstration", "time", "conversation_id", "split", "id", "extra")
# What other programs call these.
ALSO_CALLED = {
    **dict.fromkeys(("dialogue", "dialog", "turns", "history", "chat", "context", "prompt", "text"), "conversation"),
    **dict.fromkeys(("label", "labels", "target", "targets", "answer", "answers", "gold", "truth"), "ground_truth"),
    **dict.fromkeys(("completion", "response", "recommendations", "list", "output"), "demonstration"),
    **dict.fromkeys(("date", "created", "created_utc"), "time"),
    **dict.fromkeys(("session_id", "thread_id", "dialog_id"), "conversation_id"),
}
SPLITS = ("train", "validation", "test")
INSTRUCTIONS = ("system", "developer")  # roles of a chat that are no speaker
TURNS = 'write [{"role": "user", "content": "..."}, ...], in CSV USER: ...'
_TWO_YEARS = re.compile(r"\(\d{4}\).*\(\d{4}\)")
NO_IDS = ItemIds(Catalog([], []))
_SECONDS = re.compile(r"\d{9,}(\.\d+)?")


class Row(NamedTuple):
    """One line of conversations, read. truth: pairs whose year is "" where the catalog has none."""

    conversation: str
    truth: list[Pair]
    seen: list[str]
    demonstration: list[Item]
    time: float | None  # seconds since 1970
    conversation_id: str | None
    split: str | None
    id: str | None
    repeated_truths: int


def read_row(record: Mapping[str, Any], dated: bool, ids: ItemIds = NO_IDS) -> Row:
    """A record of the conversations. Raises BadRecord. `dated`: whether the catalog has years. ids: the catalog's."""
    if "messages" in record:
        if "conversation" in record:
            raise BadRecord("both conversation and messages, which are the same; keep one")
        record = {("conversation" if key == "messages" else key): value for key, value in record.items()}
    for key in record:
        if key not in KEYS:
            near = [ALSO_CALLED[key]] if key in ALSO_CALLED else get_close_matches(str(key), KEYS, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else "put what is not to be read under extra"
            raise BadRecord(f"unknown key {key!r}; {hint} Keys: {', '.join(KEYS)}")
    read = _read_items(record, "ground_truth", dated, ids)
    truth = dict.fromkeys((item.title, str(item.year) if dated else "") for item in read)
    demonstration = _read_items(record, "demonstration", dated, ids)
    if not truth and not demonstration:
        raise BadRecord("neither ground_truth nor demonstration, so nothing can be learned or measured; leave it out")
    split = record.get("split")
    if split is not None and split not in SPLITS:
        raise BadRecord("split is %r; write train, validation or test", split)
    with column("seen"):
        seen = [_seen_title(entry, dated, ids) for entry in _entries(record.get("seen"))]
    with column("time"):
        time = None if record.get("time") is None else read_time(record["time"])
    return Row(
        read_conversation(record.get("conversation")),
        list(truth),
        seen,
        demonstration,
        time,
        _read_name(record, "conversation_id"),
        split,
        _read_name(record, "id"),
        len(read) - len(truth),
    )


def check_demonstration(items: Sequence[Item], num_items: int, matcher: Matcher) -> None:
    """Raises BadRecord where the list is too long, names an item twice, or has a line that is read as another item."""
    if len(items) > num_items:
        raise BadRecord(
            "demonstration holds %s items, the prompt asks for %s; shorten it, or give --num-items",
            *(len(items), num_items),
        )
    first: dict[object, Item] = {}  # by what `Matcher.match` tells items apart by
    for item in items:
        row, key = matcher.identify_line(*item)
        earlier = first.setdefault(row if row >= 0 else (key, item.year), item)
        if earlier is not item:
            other = f", once as {format_item(*item)!r}" if item != earlier else ""
            raise BadRecord("demonstration holds %r twice%s; leave the repeat out", format_item(*earlier), other)
        again = read_again(item, matcher)
        if again is None or matcher.identify_line(*again) != (row, key):
            name = repr(format_item(*again)) if again else "no item"
            raise BadRecord("demonstration holds %r, a line that is read as %s; leave it out", format_item(*item), name)


def read_again(item: Item, matcher: Matcher) -> Item | None:
    """The item of the line that a list has for this one."""
    return parse_item(format_item(*item), matcher.catalog.dated)


def read_conversation(turns: Any) -> str:
    """ "USER: ...\\nSYSTEM: ...\\n" of a list of turns or of such a text. Raises BadRecord."""
    if turns is None or turns == []:
        raise BadRecord(f"no conversation; {TURNS}")
    if isinstance(turns, str):
        text = turns.replace("\r\n", "\n").strip() + "\n"
        speakers = [turn[1] for turn in TURN.finditer(text)]
        if not TURN.match(text):
            raise BadRecord("the conversation does not begin with `USER: ` or `SYSTEM: `; begin every turn with one")
    elif isinstance(turns, list):
        read = [_read_turn(turn, index) for index, turn in enumerate(turns)]
        speakers = [speaker for speaker, _ in read]
        text = "".join(f"{speaker}: {content}\n" for speaker, content in read)
    else:
        raise BadRecord("conversation is a %s; " + TURNS, type(turns).__name__)
    if speakers[-1] != "USER":
        raise BadRecord("the last turn is not the user's, but the list answers one; end with the user's turn")
    return text


def _read_turn(turn: Any, index: int) -> tuple[str, str]:
    if not isinstance(turn, dict) or set(turn) != {"role", "content"}:
        raise BadRecord("turn %s of the conversation is not {role, content}; " + TURNS, index)
    role, content = turn["role"], turn["content"]
    if role in INSTRUCTIONS:
        raise BadRecord(
            "turn %s has the role %r, which is an instruction to a model and no turn of the user or the recommender; "
            "leave it out: the prompt has an instruction of its own (--item, --num-items)",
            *(index, role),
        )
    if role not in tuple(SPEAKERS):  # a tuple also takes what has no hash
        raise BadRecord("turn %s has the role %r; write user, or assistant for the recommender", index, role)
    if not isinstance(content, str | None):
        raise BadRecord("the content of turn %s is a %s; write a text", index, type(content).__name__)
    content = (content or "").strip()
    if not content:
        raise BadRecord("turn %s has no text; leave it out", index)
    if another := TURN.search(content, 1):
        raise BadRecord(
            "turn %s has a line that begins with %r, which would be another turn; make it one, or change the line",
            *(index, another[0].strip()),
        )
    return SPEAKERS[role], content


def _read_items(record: Mapping[str, Any], name: str, dated: bool, ids: ItemIds) -> list[Item]:
    with column(name):
        return [read_item(entry, dated, ids) for entry in _entries(record.get(name))]


def _entries(cell: Any) -> list[Any]:
    if isinstance(cell, str):
        return split_lines(cell, "|")
    if not isinstance(cell, list | None):
        raise BadRecord("is a %s; write a list of items", type(cell).__name__)
    return cell or []


def read_item(entry: Any, dated: bool, ids: ItemIds = NO_IDS) -> Item:
    """An item in any of its forms. Raises BadRecord."""
    if item := _by_id(entry, ids):
        return item
    title, year = _title_and_year(entry)
    if not dated:
        if year not in (None, ""):
            raise BadRecord("holds %r with a year, but the catalog has no years; leave years out of both", entry)
        return Item(title, NO_YEAR)
    if isinstance(entry, str):
        item = parse_item(entry)
        if item is None:
            raise BadRecord("holds %r, which is not `Title (1999)`; add the year, as in the catalog", entry)
        if _TWO_YEARS.search(entry):
            raise BadRecord("holds %r, which has two years; write [title, year]", entry)
        title, year = item
    number = parse_year(year)
    if number is None or not OLDEST_YEAR <= number <= NEWEST_YEAR:
        raise BadRecord(f"holds %r: %r is no year from {OLDEST_YEAR} to {NEWEST_YEAR}; write it right", entry, year)
    return Item(title, number)


def _by_id(entry: Any, ids: ItemIds) -> Item | None:
    """The item of an entry that is an id. Raises BadRecord for an id that the catalog lacks."""
    if not ids:
        return None
    if isinstance(entry, dict) and set(entry) == {"item_id"}:
        return ids.find(entry["item_id"])
    if isinstance(entry, int) and not isinstance(entry, bool):
        return ids.find(entry)
    return ids.read(entry.strip()) if isinstance(entry, str) else None


def _title_and_year(entry: Any) -> tuple[str, Any]:
    title: Any = None
    year: Any = None
    if isinstance(entry, str):
        title = entry
    elif isinstance(entry, list) and 1 <= len(entry) <= 2:
        title, year = (*entry, None)[:2]
    elif isinstance(entry, dict) and set(entry) <= {"title", "year"}:
        title, year = entry.get("title"), entry.get("year")
    if not isinstance(title, str) or not title.strip():
        raise BadRecord('holds %r, which is no item; write "Title (1999)" or [title, year]', entry)
    return " ".join(title.split()), year


def _seen_title(entry: Any, dated: bool, ids: ItemIds) -> str:
    """A seen title has no year; one that is written all the same is taken off."""
    if by_id := _by_id(entry, ids):
        return by_id.title
    title, _ = _title_and_year(entry)
    item = parse_item(title) if dated and isinstance(entry, str) else None
    return item.title if item else title


def read_time(value: Any) -> float:
    """Seconds since 1970 of an ISO 8601 date or time (without a zone: UTC), or of seconds. Raises BadRecord."""
    if isinstance(value, str) and not _SECONDS.fullmatch(value.strip()):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            raise BadRecord("is %r; write 2022-10-31, 2022-10-31T18:05:00Z or seconds since 1970", value) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadRecord("is a %s; write 2022-10-31T18:05:00Z or seconds since 1970", type(value).__name__)
    seconds = float(value) if isinstance(value, str) else value
    if not 1e8 <= seconds < 1e11:  # from 1973 on: less is a year or a date without its quotes
        raise BadRecord(
            'is %r; a number is seconds since 1970 (milliseconds: divide by 1,000), a date is a text: "2022-10-31"',
            value,
        )
    return float(seconds)


def _read_name(record: Mapping[str, Any], key: str) -> str | None:
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise BadRecord(f"{key} is %r; write a text or a number, or leave it out", value)
    return str(value).strip()
