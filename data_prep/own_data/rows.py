"""A record of one's own conversations: what it holds, what is said of a damaged one. docs/how-to/data.md has the keys
and the forms of an item; `cells` reads items."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple

from convrec.data.damage import BadRecord, BadRow, collected
from convrec.data.schema import SPEAKERS, TURN, Pair, turns_of_text
from convrec.lists.matching import Matcher
from convrec.lists.ranks import Item, format_item, parse_item
from data_prep.own_data import NAMES
from data_prep.own_data.cells import ItemReader

KEYS: tuple[str, ...] = ("conversation", "ground_truth", "seen", "demonstration", "exposure")
KEYS += ("time", "conversation_id", "split", "id", "extra")
ALSO_CALLED = {name: key for key, names in NAMES["keys"].items() for name in names}
SPLITS = ("train", "validation", "test")
INSTRUCTIONS = ("system", "developer")  # roles that are no speaker
TOOLS = ("tool", "function")
NOTHING_WANTED = (
    "neither ground_truth nor demonstration, so nothing can be learned or measured; leave it out, or take what the "
    "next turns name: --truth from-next-turns"
)
TURNS = 'write [{"role": "user", "content": "..."}, ...], in CSV USER: ...'
_SECONDS = re.compile(r"\d{9,}(\.\d+)?")


class Turn(NamedTuple):
    role: str  # user or assistant: the recommender
    content: str
    items: Any = None  # a cell with what it names, where its source says so


class Row(NamedTuple):
    """One line of conversations, read. truth, exposure: pairs whose year is "" where the catalog has none."""

    conversation: str
    truth: list[Pair]
    seen: list[str]
    demonstration: list[Item]
    time: float | None  # seconds since 1970
    conversation_id: str | None
    split: str | None
    id: str | None
    repeated_truths: int
    exposure: list[Pair]  # what was shown, best first


def read_row(record: Mapping[str, Any], reader: ItemReader, num_items: int, turns: Sequence[Turn] | None = None) -> Row:
    """A record of the conversations. Raises BadRow with all that is wrong with it. turns: where they have been read."""
    problems = [_unknown_key(key) for key in record if key not in KEYS and key != "messages"]
    if not problems and not record.get("ground_truth") and not record.get("demonstration"):
        problems.append(BadRecord(NOTHING_WANTED))
    text = ""

    def read(column: str, by: Callable[..., Any], otherwise: Any = None) -> Any:
        if (value := record.get(column)) is None:
            return otherwise
        with collected(problems, column):
            return by(value)

    with collected(problems):
        if "messages" in record and "conversation" in record:
            raise BadRecord("both conversation and messages, which are the same; keep one")
        turns = turns or read_turns(record.get("messages", record.get("conversation")), Counter())
        text = conversation_text(turns)
    truth, exposure = (read(column, reader.items, []) for column in ("ground_truth", "exposure"))
    demonstration = read("demonstration", partial(_read_demonstration, reader, num_items), [])
    seen = read("seen", reader.titles, [])
    time, split = read("time", read_time), read("split", _read_split)
    conversation_id, own_id = read("conversation_id", _read_name), read("id", _read_name)
    if problems:
        raise BadRow(problems)
    truths, shown = (
        list(dict.fromkeys((item.title, str(item.year) if reader.dated else "") for item in items))
        for items in (truth, exposure)
    )
    repeated = len(truth) - len(truths)
    return Row(text, truths, seen, demonstration, time, conversation_id, split, own_id, repeated, shown)


def _unknown_key(key: str) -> BadRecord:
    near = [ALSO_CALLED[key]] if key in ALSO_CALLED else get_close_matches(str(key), KEYS, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else "put what is not to be read under extra"
    return BadRecord(f"unknown key {key!r}; {hint} Keys: {', '.join(KEYS)}")


def _read_split(split: Any) -> str:
    if split not in SPLITS:
        raise BadRecord("is %r; write train, validation or test", split)
    return split


def _read_demonstration(reader: ItemReader, num_items: int, cell: Any) -> list[Item]:
    """Raises BadRow where the list is too long, names an item twice, or has a line that is read as another item."""
    items, matcher = reader.items(cell), reader.matcher
    problems: list[BadRecord] = []
    if len(items) > num_items:
        told = "holds %s items, the prompt asks for %s; shorten it, or give --num-items"
        problems.append(BadRecord(told, len(items), num_items))
    first: dict[object, Item] = {}  # by what `Matcher.match` tells items apart by
    for item in items:
        row, key = matcher.identify_line(*item)
        earlier = first.setdefault(row if row >= 0 else (key, item.year), item)
        if earlier is not item:
            other = f", once as {format_item(*item)!r}" if item != earlier else ""
            problems.append(BadRecord("holds %r twice%s; leave the repeat out", format_item(*earlier), other))
        again = read_again(item, matcher)
        if again is None or matcher.identify_line(*again) != (row, key):
            name = repr(format_item(*again)) if again else "no item"
            told = "holds %r, a line that is read as %s; leave it out"
            problems.append(BadRecord(told, format_item(*item), name))
    if problems:
        raise BadRow(problems)
    return items


def read_again(item: Item, matcher: Matcher) -> Item | None:
    """The item of the line that a list has for this one."""
    return parse_item(format_item(*item), matcher.catalog.dated)


def read_turns(turns: Any, left_out: Counter[str]) -> list[Turn]:
    """Turns of user and recommender, of a list of turns or of a text in which every turn begins with its speaker.
    left_out gets what is not read: kind -> count. Raises BadRow."""
    if turns is None or turns == []:
        raise BadRecord(f"no conversation; {TURNS}")
    read: list[Turn] = []
    problems: list[BadRecord] = []
    if isinstance(turns, str):
        turns = turns_of_text(turns)
        if not turns:
            raise BadRecord("the conversation does not begin with `USER: ` or `SYSTEM: `; begin every turn with one")
    if not isinstance(turns, list):
        raise BadRecord("conversation is a %s; " + TURNS, type(turns).__name__)
    for index, turn in enumerate(turns):
        with collected(problems):
            if not isinstance(turn, dict) or "role" not in turn or "content" not in turn:
                raise BadRecord("turn %s of the conversation is not {role, content}; " + TURNS, index)
            role, content = turn["role"], _texts(turn["content"], index, left_out)
            if role in TOOLS or (not content and (turn.get("tool_calls") or isinstance(turn["content"], list))):
                left_out["turns of tools, or without text"] += 1
            elif role in INSTRUCTIONS and not read and not problems:
                left_out["instructions to a model"] += 1
            else:
                read.append(_read_turn(role, content, index, turn.get("items")))
    if problems:
        raise BadRow(problems)
    if not read:
        raise BadRecord(f"no turn of a user; {TURNS}")
    return read


def conversation_text(turns: Sequence[Turn]) -> str:
    """ "USER: ...\\nSYSTEM: ...\\n" of turns. Raises BadRecord."""
    if turns[-1].role != "user":
        raise BadRecord("the last turn is not the user's, but the list answers one; end with the user's turn")
    return "".join(f"{SPEAKERS[turn.role]}: {turn.content}\n" for turn in turns)


def _texts(content: Any, index: int, left_out: Counter[str]) -> str:
    """A text; of content blocks (OpenAI's, Anthropic's) their texts. The others are counted."""
    if isinstance(content, list) and all(map(_is_block, content)):
        texts = [part if isinstance(part, str) else part.get("text") for part in content]
        texts = [text for text in texts if isinstance(text, str)]
        left_out["pictures and other content without text"] += len(content) - len(texts) if texts else 0
        content = "\n".join(texts)
    if not isinstance(content, str | None):
        raise BadRecord("the content of turn %s is a %s; write a text", index, type(content).__name__)
    return (content or "").strip()


def _is_block(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and not {"type", "content_type"}.isdisjoint(part))


def _read_turn(role: Any, content: str, index: int, items: Any) -> Turn:
    if role in INSTRUCTIONS:
        raise BadRecord(
            "turn %s has the role %r, which is an instruction to a model and no turn of the user or the recommender; "
            "write assistant for the recommender, or leave it out",
            *(index, role),
        )
    if role not in tuple(SPEAKERS):  # a tuple also takes what has no hash
        raise BadRecord("turn %s has the role %r; write user, or assistant for the recommender", index, role)
    if not content:
        raise BadRecord("turn %s has no text; leave it out", index)
    if another := TURN.search(content, 1):
        raise BadRecord(
            "turn %s has a line that begins with %r, which would be another turn; make it one, or change the line",
            *(index, another[0].strip()),
        )
    return Turn(role, content, items)


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


def _read_name(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise BadRecord("is %r; write a text or a number, or leave it out", value)
    return str(value).strip()
