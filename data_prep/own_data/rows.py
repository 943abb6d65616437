"""A line of one's own conversations: what it holds, what is said of a damaged one (docs/how-to/data.md).

JSONL (an object a line) or CSV (a header, then the same keys as columns):

    conversation     [{"role": "user" | "assistant", "content": text}, ...], a user's turn last; also, and in CSV
                     always, as text: "USER: ...\\nSYSTEM: ...\\nUSER: ...", where SYSTEM is the recommender, as in the
                     released data. A turn of the role "system" is an instruction to a model, and refused. `messages`
                     is the same key
    ground_truth     items: what was right to recommend
    seen             items that the conversation names
    demonstration    items: a list to imitate, best first
    time             ISO 8601 (without a zone: UTC) or seconds since 1970
    conversation_id  rows with the same one never come into two splits; default: how the conversation begins
    split            train, validation or test
    id               a name for the row; default: made of its content
    extra            anything; it is not read

An item is "Title (1999)", ["Title", 1999] or {"title": "Title", "year": 1999}; where the catalog has no years "Title",
["Title"] or {"title": "Title"}. In CSV items are `Title (1999)` with `|` between them. Where the catalog has a column
item_id an item is also its id, alone or as {"item_id": ...}.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, NamedTuple

from convrec.data.schema import SPEAKERS, TURN, Pair
from convrec.lists.catalog import NEWEST_YEAR, OLDEST_YEAR, Catalog, parse_year
from convrec.lists.matching import Matcher
from convrec.lists.ranks import NO_YEAR, Item, format_item, parse_item, split_lines
from data_prep.own_data.catalog import ItemIds
from data_prep.own_data.files import BadLine

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
    """A record of the conversations. Raises BadLine. `dated`: whether the catalog has years. ids: the catalog's."""
    if "messages" in record:
        if "conversation" in record:
            raise BadLine("both conversation and messages, which are the same; keep one")
        record = {("conversation" if key == "messages" else key): value for key, value in record.items()}
    for key in record:
        if key not in KEYS:
            near = [ALSO_CALLED[key]] if key in ALSO_CALLED else get_close_matches(str(key), KEYS, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else "put what is not to be read under extra"
            raise BadLine(f"unknown key {key!r}; {hint} Keys: {', '.join(KEYS)}")
    truth: dict[Pair, None] = {}
    read = _read_items(record, "ground_truth", dated, ids)
    for item in read:
        truth[item.title, str(item.year) if dated else ""] = None
    demonstration = _read_items(record, "demonstration", dated, ids)
    if not truth and not demonstration:
        raise BadLine("neither ground_truth nor demonstration, so nothing can be learned or measured; leave it out")
    split = record.get("split")
    if split is not None and split not in SPLITS:
        raise BadLine("split is %r; write train, validation or test", split)
    return Row(
        read_conversation(record.get("conversation")),
        list(truth),
        [_seen_title(entry, dated, ids) for entry in _entries(record, "seen")],
        demonstration,
        None if record.get("time") is None else read_time(record["time"]),
        _read_name(record, "conversation_id"),
        split,
        _read_name(record, "id"),
        len(read) - len(truth),
    )


def check_demonstration(items: Sequence[Item], num_items: int, matcher: Matcher) -> None:
    """Raises BadLine where the list is too long, names an item twice, or a line of it would be read as another item."""
    if len(items) > num_items:
        raise BadLine(
            "demonstration holds %s items, the prompt asks for %s; shorten it, or give --num-items",
            *(len(items), num_items),
        )
    first: dict[object, Item] = {}  # by what `Matcher.match` tells items apart by
    for item in items:
        row, key = matcher.identify(*item)
        earlier = first.setdefault(row if row >= 0 else (key, item.year), item)
        if earlier is not item:
            other = f", once as {format_item(*item)!r}" if item != earlier else ""
            raise BadLine("demonstration holds %r twice%s; leave the repeat out", format_item(*earlier), other)
        again = read_again(item, matcher)
        if again is None or matcher.identify(*again) != (row, key):
            name = repr(format_item(*again)) if again else "no item"
            raise BadLine("demonstration holds %r, a line that is read as %s; leave it out", format_item(*item), name)


def read_again(item: Item, matcher: Matcher) -> Item | None:
    """The item of the line that a list has for this one."""
    return parse_item(format_item(*item), matcher.catalog.dated)


def read_conversation(turns: Any) -> str:
    """ "USER: ...\\nSYSTEM: ...\\n" of a list of turns or of such a text. Raises BadLine."""
    if turns is None or turns == []:
        raise BadLine(f"no conversation; {TURNS}")
    if isinstance(turns, str):
        text = turns.replace("\r\n", "\n").strip() + "\n"
        speakers = [turn[1] for turn in TURN.finditer(text)]
        if not TURN.match(text):
            raise BadLine("the conversation does not begin with `USER: ` or `SYSTEM: `; begin every turn with one")
    elif isinstance(turns, list):
        read = [_read_turn(turn, place) for place, turn in enumerate(turns)]
        speakers = [speaker for speaker, _ in read]
        text = "".join(f"{speaker}: {content}\n" for speaker, content in read)
    else:
        raise BadLine("conversation is a %s; " + TURNS, type(turns).__name__)
    if speakers[-1] != "USER":
        raise BadLine("the last turn is not the user's, but the list answers one; end with the user's turn")
    return text


def _read_turn(turn: Any, place: int) -> tuple[str, str]:
    if not isinstance(turn, dict) or set(turn) != {"role", "content"}:
        raise BadLine("turn %s of the conversation is not {role, content}; " + TURNS, place)
    role, content = turn["role"], turn["content"]
    if role in INSTRUCTIONS:
        raise BadLine(
            "turn %s has the role %r, which is an instruction to a model and no turn of the user or the recommender; "
            "leave it out: the prompt has an instruction of its own (--item, --num-items)",
            *(place, role),
        )
    if role not in tuple(SPEAKERS):  # a tuple also takes what has no hash
        raise BadLine("turn %s has the role %r; write user, or assistant for the recommender", place, role)
    if not isinstance(content, str | None):
        raise BadLine("the content of turn %s is a %s; write a text", place, type(content).__name__)
    content = (content or "").strip()
    if not content:
        raise BadLine("turn %s has no text; leave it out", place)
    if another := TURN.search(content, 1):
        raise BadLine(
            "turn %s has a line that begins with %r, which would be another turn; make it one, or change the line",
            *(place, another[0].strip()),
        )
    return SPEAKERS[role], content


def _entries(record: Mapping[str, Any], key: str) -> list[Any]:
    value = record.get(key)
    if value is None:
        return []
    if isinstance(value, str):
        return split_lines(value, "|")
    if not isinstance(value, list):
        raise BadLine(f"{key} is a %s; write a list of items", type(value).__name__)
    return value


def _read_items(record: Mapping[str, Any], key: str, dated: bool, ids: ItemIds) -> list[Item]:
    return [read_item(entry, key, dated, ids) for entry in _entries(record, key)]


def read_item(entry: Any, key: str, dated: bool, ids: ItemIds = NO_IDS) -> Item:
    """An item in any of its forms. Raises BadLine."""
    if item := _by_id(entry, key, ids):
        return item
    title, year = _title_and_year(entry, key)
    if not dated:
        if year not in (None, ""):
            raise BadLine(f"{key} holds %r with a year, but the catalog has no years; leave years out of both", entry)
        return Item(title, NO_YEAR)
    if isinstance(entry, str):
        item = parse_item(entry)
        if item is None:
            raise BadLine(f"{key} holds %r, which is not `Title (1999)`; add the year, as in the catalog", entry)
        if _TWO_YEARS.search(entry):
            raise BadLine(f"{key} holds %r, which has two years; write [title, year]", entry)
        title, year = item
    number = parse_year(year)
    if number is None or not OLDEST_YEAR <= number <= NEWEST_YEAR:
        raise BadLine(f"{key} holds %r: %r is no year from {OLDEST_YEAR} to {NEWEST_YEAR}; write it right", entry, year)
    return Item(title, number)


def _by_id(entry: Any, key: str, ids: ItemIds) -> Item | None:
    """The item of an entry that is an id. Raises BadLine for an id that the catalog lacks."""
    if not ids:
        return None
    if isinstance(entry, dict) and set(entry) == {"item_id"}:
        return ids.find(entry["item_id"], key)
    if isinstance(entry, int) and not isinstance(entry, bool):
        return ids.find(entry, key)
    return ids.read(entry.strip(), key) if isinstance(entry, str) else None


def _title_and_year(entry: Any, key: str) -> tuple[str, Any]:
    title: Any = None
    year: Any = None
    if isinstance(entry, str):
        title = entry
    elif isinstance(entry, list) and 1 <= len(entry) <= 2:
        title, year = (*entry, None)[:2]
    elif isinstance(entry, dict) and set(entry) <= {"title", "year"}:
        title, year = entry.get("title"), entry.get("year")
    if not isinstance(title, str) or not title.strip():
        raise BadLine(f'{key} holds %r, which is no item; write "Title (1999)" or [title, year]', entry)
    return " ".join(title.split()), year


def _seen_title(entry: Any, dated: bool, ids: ItemIds) -> str:
    """A seen title has no year; one that is written all the same is taken off."""
    if by_id := _by_id(entry, "seen", ids):
        return by_id.title
    title, _ = _title_and_year(entry, "seen")
    item = parse_item(title) if dated and isinstance(entry, str) else None
    return item.title if item else title


def read_time(value: Any) -> float:
    """Seconds since 1970 of an ISO 8601 date or time (without a zone: UTC), or of seconds. Raises BadLine."""
    if isinstance(value, str) and not _SECONDS.fullmatch(value.strip()):
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            raise BadLine("time is %r; write 2022-10-31, 2022-10-31T18:05:00Z or seconds since 1970", value) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadLine("time is a %s; write 2022-10-31T18:05:00Z or seconds since 1970", type(value).__name__)
    seconds = float(value) if isinstance(value, str) else value
    if not 1e8 <= seconds < 1e11:  # from 1973 on: less is a year or a date without its quotes
        raise BadLine(
            "time is %r; a number is seconds since 1970 (milliseconds: divide by 1,000), a date is a text: "
            '"2022-10-31"',
            value,
        )
    return float(seconds)


def _read_name(record: Mapping[str, Any], key: str) -> str | None:
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise BadLine(f"{key} is %r; write a text or a number, or leave it out", value)
    return str(value).strip()
