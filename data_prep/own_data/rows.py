"""A record of one's own conversations: what it holds, what is said of a damaged one.

docs/how-to/convert-conversations.md has the keys and the forms of an item; `cells` reads items."""

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from convrec.data.damage import BadRecord, BadRow, collected
from convrec.data.schema import SPEAKERS, TURN, Pair, turns_of_text
from convrec.titles.item import Item, format_item, parse_item
from convrec.titles.marks import decode_marks
from convrec.titles.matching import Matcher
from data_prep.own_data.cells import ItemReader
from data_prep.own_data.forms.base import NAMES, TOOL, plain_name
from data_prep.own_data.forms.own import WANTED
from data_prep.own_data.forms.sharegpt import TOOL_SPEAKERS
from data_prep.own_data.ids import SPOILED_ID, plain_id
from data_prep.own_data.times import DateOrder, parse_time

KEYS: tuple[str, ...] = ("conversation", "ground_truth", "seen", "demonstration", "exposure")
KEYS += ("time", "conversation_id", "split", "id", "extra")
ALSO_CALLED = {name: key for key, names in NAMES["keys"].items() for name in names}
SPLITS = ("train", "validation", "test")
INSTRUCTIONS = ("system", "developer")  # roles that are no speaker
NOTHING_WANTED = (
    "neither ground_truth nor demonstration, so nothing can be learned or measured; leave it out, or take what the "
    "next turns name: --truth from-next-turns"
)
TURNS = 'write [{"role": "user", "content": "..."}, ...], in CSV USER: ...'
# What a chat template puts around turns. Text with them is a rendered prompt, whose turns would all become one.
TEMPLATE_MARKER = re.compile(
    r"<\|[a-z_]{2,30}\|>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|<\uff5c[^\uff5c<>]{2,30}\uff5c>|\A\s*<s>|</s>\s*\Z"
    r"|^### (?:Instruction|Response|Human|Assistant):|^(?:Human|Assistant): (?=[\s\S]*^(?:Human|Assistant):)",
    re.MULTILINE,
)
_LINE_BREAK = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")


class Turn(NamedTuple):
    role: str  # user or assistant: the recommender
    content: str
    items: Any = None  # a cell with what it names, where its source says so


@dataclass(frozen=True, slots=True)
class Row:
    """One line of conversations, read.

    conversation: "USER: ...\\nSYSTEM: ...\\n".
    truth, exposure: pairs whose year is "" where the catalog has none; exposure is what was shown, best first.
    time: seconds since 1970.
    why: why this is wanted, in words.
    """

    conversation: str
    truth: list[Pair]
    seen: list[str]
    demonstration: list[Item] = field(default_factory=list)
    time: float | None = None
    conversation_id: str | None = None
    split: str | None = None
    id: str | None = None
    repeated_truths: int = 0
    exposure: list[Pair] = field(default_factory=list)
    why: str = ""


def read_row(
    record: Mapping[str, Any],
    reader: ItemReader,
    num_items: int,
    turns: Sequence[Turn] | None = None,
    date_order: DateOrder | None = None,
) -> Row:
    """Read a record of the conversations.

    Args:
        record: its values under KEYS; what else it has is not read.
        reader: of the catalog.
        num_items: the items that a demonstration has at most.
        turns: where they have been read.
        date_order: of the file's dates.

    Raises:
        BadRow: All that is wrong with the record.
    """
    problems: list[BadRecord] = []
    if is_missing(record.get("ground_truth")) and is_missing(record.get("demonstration")):
        problems.append(BadRecord(NOTHING_WANTED + _hint_at_wanted(record)))
    text = ""

    def read(column: str, by: Callable[..., Any], otherwise: Any = None) -> Any:
        if is_missing(value := record.get(column)):
            return otherwise
        with collected(problems, column):
            return by(value)

    def read_items(cell: Any) -> list[Item]:
        return reader.items(without_missing(cell))

    with collected(problems):
        if "messages" in record and "conversation" in record:
            raise BadRecord("both conversation and messages, which are the same; keep one")
        turns = turns or read_turns(record.get("messages", record.get("conversation")), Counter())
        text = conversation_text(turns)
    truth = read("ground_truth", read_items, [])
    exposure = read("exposure", read_items, [])
    demonstration = read("demonstration", partial(_read_demonstration, reader, num_items), [])
    seen = read("seen", lambda cell: reader.titles(without_missing(cell)), [])
    time = read("time", partial(parse_time, order=date_order))
    split = read("split", _read_split)
    conversation_id = read("conversation_id", _read_name)
    own_id = read("id", _read_name)
    if problems:
        raise BadRow(problems)
    truths = _different_pairs(truth, reader.dated)
    return Row(
        conversation=text,
        truth=truths,
        seen=seen,
        demonstration=demonstration,
        time=time,
        conversation_id=conversation_id,
        split=split,
        id=own_id,
        repeated_truths=len(truth) - len(truths),
        exposure=_different_pairs(exposure, reader.dated),
    )


def _different_pairs(items: Sequence[Item], dated: bool) -> list[Pair]:
    """The items as pairs, each once; years are "" where the catalog has none."""
    return list(dict.fromkeys((item.title, str(item.year) if dated else "") for item in items))


def is_missing(value: Any) -> bool:
    """Whether there is no value: null, an empty text or list, or NaN, which pandas writes for null."""
    return value is None or value == "" or value == [] or (isinstance(value, float) and value != value)


def without_missing(value: Any) -> Any:
    """A cell without nulls: parquet pads structs with them, and pandas writes NaN for them."""
    if isinstance(value, dict):
        return {key: part for key, part in value.items() if part is not None and part == part}
    if isinstance(value, list):
        return [without_missing(part) for part in value]
    return value


def _hint_at_wanted(record: Mapping[str, Any]) -> str:
    """Which key of a record may be what is wanted, under another name."""
    for key in record:
        ours = ALSO_CALLED.get(plain_name(key))
        if ours in WANTED:
            return f"; if it is {key}: --columns {ours}={key}"
    return ""


def _read_split(split: Any) -> str:
    if split not in SPLITS:
        raise BadRecord("is %r; write train, validation or test", split)
    return split


def _read_demonstration(reader: ItemReader, num_items: int, cell: Any) -> list[Item]:
    """Raises BadRow where the list is too long, names an item twice, or has a line that is read as another item."""
    items = reader.items(without_missing(cell))
    matcher = reader.matcher
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
    if is_missing(turns):
        raise BadRecord(f"no conversation; {TURNS}")
    read: list[Turn] = []
    problems: list[BadRecord] = []
    if isinstance(turns, str):
        turns = _parse_turns(turns)
    if not isinstance(turns, list):
        raise BadRecord("conversation is a %s; " + TURNS, type(turns).__name__)
    for index, turn in enumerate(turns):
        with collected(problems):
            if not isinstance(turn, dict) or "role" not in turn or "content" not in turn:
                raise BadRecord("turn %s of the conversation is not {role, content}; " + TURNS, index)
            role = turn["role"]
            content = _texts(turn["content"], index, left_out)
            if _is_of_tool(turn, content):
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


def _parse_turns(text: str) -> list[Any]:
    """The turns of a text: a list of them, as JSON or Python write it, or lines that begin with their speakers."""
    if text.lstrip().startswith("["):
        for parse in (json.loads, ast.literal_eval):
            try:
                value = parse(text.strip())
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            if isinstance(value, list):
                return value
    turns = turns_of_text(_clean(text))
    if not turns:
        raise BadRecord("the conversation does not begin with `USER: ` or `SYSTEM: `; begin every turn with one")
    return turns


def _is_of_tool(turn: Mapping[str, Any], content: str) -> bool:
    """Whether a turn calls a tool, has its result, or has only what is no text."""
    role = turn["role"]
    if isinstance(role, str) and (role == TOOL or plain_name(role) in TOOL_SPEAKERS):
        return True
    return not content and bool(turn.get("tool_calls") or isinstance(turn["content"], list))


def _clean(text: str) -> str:
    """The text with one kind of line break and entities of HTML decoded. Raises BadRecord for a NUL."""
    if "\0" in text:
        raise BadRecord("a NUL, which is no text; take it out")
    return decode_marks(_LINE_BREAK.sub("\n", text))


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
    return _clean(content or "").strip()


def _is_block(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and not {"type", "content_type"}.isdisjoint(part))


def _read_turn(role: Any, content: str, index: int, items: Any) -> Turn:
    if role in INSTRUCTIONS:
        told = (
            "turn %s has the role %r, which is an instruction to a model and no turn of the user or the recommender; "
            "write assistant for the recommender, or leave it out"
        )
        raise BadRecord(told, index, role)
    if role not in tuple(SPEAKERS):  # a tuple also takes what has no hash
        raise BadRecord("turn %s has the role %r; write user, or assistant for the recommender", index, role)
    if not content:
        raise BadRecord("turn %s has no text; leave it out", index)
    another = TURN.search(content, 1)
    if another:
        told = "turn %s has a line that begins with %r, which would be another turn; make it one, or change the line"
        raise BadRecord(told, index, another[0].strip())
    marker = TEMPLATE_MARKER.search(content)
    if marker:
        told = "turn %s has %r, which a chat template puts between turns; give the messages as they were before it"
        raise BadRecord(told, index, marker[0].strip())
    return Turn(role, content, items)


def _read_name(value: Any) -> str:
    name = None if isinstance(value, bool) or not isinstance(value, str | int | float) else plain_id(value)
    if name is None and isinstance(value, str | float) and str(value).strip():
        raise BadRecord(SPOILED_ID, value)
    if name is None:
        raise BadRecord("is %r; write a text or a number, or leave it out", value)
    return name
