"""Read a record of your own conversations and report everything that is wrong with it.

docs/how-to/convert-conversations.md lists the keys and the ways to write an item; `cells` reads items.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from convrec.data.damage import BadRecord, BadRow, collected
from convrec.data.schema import SPEAKERS, TURN, Pair, parse_turns
from convrec.titles.item import Item, format_item, parse_item
from convrec.titles.marks import decode_marks
from convrec.titles.matching import Matcher
from data_prep.own_data.cells import ItemReader
from data_prep.own_data.forms.base import NAMES, TOOL, normalise_name
from data_prep.own_data.forms.own import WANTED
from data_prep.own_data.forms.sharegpt import TOOL_SPEAKERS
from data_prep.own_data.ids import make_truncated_id_error, normalise_id
from data_prep.own_data.times import DateOrder, parse_time

KEYS: tuple[str, ...] = ("conversation", "ground_truth", "seen", "demonstration", "exposure")
KEYS += ("time", "conversation_id", "split", "id", "extra")
ALSO_CALLED = {name: key for key, names in NAMES["keys"].items() for name in names}
SPLITS = ("train", "validation", "test")
INSTRUCTIONS = ("system", "developer")  # roles that are not speakers
NO_GROUND_TRUTH = (
    "neither ground_truth nor demonstration, so nothing can be learned or measured; remove the row, or use the items "
    "that the next turns name: --truth from-next-turns"
)
TURNS = 'write [{"role": "user", "content": "..."}, ...], in CSV USER: ...'
# Markers that a chat template puts around turns. Text with them is a rendered prompt: all turns would become one.
TEMPLATE_MARKER = re.compile(
    r"<\|[a-z_]{2,30}\|>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|<\uff5c[^\uff5c<>]{2,30}\uff5c>|\A\s*<s>|</s>\s*\Z"
    r"|^### (?:Instruction|Response|Human|Assistant):|^(?:Human|Assistant): (?=[\s\S]*^(?:Human|Assistant):)",
    re.MULTILINE,
)
_LINE_BREAK = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")


class Turn(NamedTuple):
    role: str  # user or assistant: the recommender
    content: str
    items: Any = None  # a cell with the items it names, if the source lists them


@dataclass(frozen=True, slots=True)
class Row:
    """A row of conversations.

    Attributes:
        conversation: "USER: ...\\nSYSTEM: ...\\n".
        truth: the ground truth as (title, year); the year is "" if the catalog has none.
        seen: titles of seen items.
        demonstration: the items of a demonstration, best first.
        time: seconds since 1970; None if the row has none.
        conversation_id: the name of its conversation; None if the row has none.
        split: the row's own split; None if it has none.
        id: the row's own name; None if it has none.
        repeated_truths: number of repeated ground truths that were dropped.
        exposure: the items that were shown, best first, as pairs like `truth`.
        why: where the ground truth comes from, in words.
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
    """Read a record of conversations.

    Args:
        record: its values under KEYS; other keys are ignored.
        reader: reads items with the catalog.
        num_items: maximum length of a demonstration.
        turns: the turns, if they have been read already.
        date_order: order of day and month in the file's dates; None if unknown.

    Raises:
        BadRow: With everything that is wrong with the record.
    """
    problems: list[BadRecord] = []
    if is_missing(record.get("ground_truth")) and is_missing(record.get("demonstration")):
        problems.append(BadRecord("row.no-ground-truth", NO_GROUND_TRUTH + _suggest_column(record)))
    text = ""

    def read(column: str, parse: Callable[..., Any], default: Any = None) -> Any:
        value = record.get(column)
        if is_missing(value):
            return default
        with collected(problems, column):
            return parse(value)

    def read_items(cell: Any) -> list[Item]:
        return reader.read_items(drop_missing(cell))

    with collected(problems):
        if "messages" in record and "conversation" in record:
            raise BadRecord("row.two-names", "both conversation and messages, which mean the same; keep one")
        turns = turns or read_turns(record.get("messages", record.get("conversation")), Counter())
        text = conversation_text(turns)
    truth = read("ground_truth", read_items, [])
    exposure = read("exposure", read_items, [])
    demonstration = read("demonstration", partial(_read_demonstration, reader, num_items), [])
    seen = read("seen", lambda cell: reader.read_titles(drop_missing(cell)), [])
    time = read("time", partial(parse_time, order=date_order))
    split = read("split", _read_split)
    conversation_id = read("conversation_id", _read_name)
    own_id = read("id", _read_name)
    if problems:
        raise BadRow(problems)
    truths = _deduplicate_pairs(truth, reader.has_years)
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
        exposure=_deduplicate_pairs(exposure, reader.has_years),
    )


def _deduplicate_pairs(items: Sequence[Item], has_years: bool) -> list[Pair]:
    """Return the items as pairs, each once; years are "" if the catalog has none."""
    return list(dict.fromkeys((item.title, str(item.year) if has_years else "") for item in items))


def is_missing(value: Any) -> bool:
    """Whether a value is missing: null, an empty string or list, or NaN, which pandas writes for null."""
    return value is None or value == "" or value == [] or (isinstance(value, float) and value != value)


def drop_missing(value: Any) -> Any:
    """Drop the nulls in a cell: parquet pads structs with them, and pandas writes NaN for them."""
    if isinstance(value, dict):
        return {key: part for key, part in value.items() if part is not None and part == part}
    if isinstance(value, list):
        return [drop_missing(part) for part in value]
    return value


def _suggest_column(record: Mapping[str, Any]) -> str:
    """Suggest which key of a record may be the ground truth under another name; "" for none."""
    for key in record:
        ours = ALSO_CALLED.get(normalise_name(key))
        if ours in WANTED:
            return f"; if {key} is the {ours}: --columns {ours}={key}"
    return ""


def _read_split(split: Any) -> str:
    if split not in SPLITS:
        raise BadRecord("row.unknown-split", "is %r; write train, validation or test", split)
    return split


def _read_demonstration(reader: ItemReader, num_items: int, cell: Any) -> list[Item]:
    """Read a demonstration.

    Raises:
        BadRow: It is too long, names an item twice, or has a line that would be read as another item.
    """
    items = reader.read_items(drop_missing(cell))
    matcher = reader.matcher
    problems: list[BadRecord] = []
    if len(items) > num_items:
        too_long = BadRecord(
            "demonstration.too-long",
            "holds %s items, but the prompt asks for %s; shorten it, or raise --num-items",
            len(items),
            num_items,
        )
        problems.append(too_long)
    first: dict[object, Item] = {}  # keyed as `Matcher.match` distinguishes items
    for item in items:
        row, key = matcher.identify_line(*item)
        earlier = first.setdefault(row if row >= 0 else (key, item.year), item)
        if earlier is not item:
            other = f", once written {format_item(*item)!r}" if item != earlier else ""
            twice = BadRecord(
                "demonstration.repeated-item", "holds %r twice%s; remove the duplicate", format_item(*earlier), other
            )
            problems.append(twice)
        again = reparse_item(item, matcher)
        if again is None or matcher.identify_line(*again) != (row, key):
            name = repr(format_item(*again)) if again else "no item"
            misread = BadRecord(
                "demonstration.misread-item",
                "holds %r, which as a line of a list is read as %s; remove it",
                format_item(*item),
                name,
            )
            problems.append(misread)
    if problems:
        raise BadRow(problems)
    return items


def reparse_item(item: Item, matcher: Matcher) -> Item | None:
    """Format an item as a line of a list and parse it again.

    Args:
        item: as the source has it.
        matcher: of the catalog, which decides whether lines have years.

    Returns:
        The item that a list with this line has; None if the line is not read as an item.
    """
    return parse_item(format_item(*item), matcher.catalog.dated)


def read_turns(turns: Any, left_out: Counter[str]) -> list[Turn]:
    """Read the turns of user and recommender.

    Args:
        turns: a list of {role, content}, or text in which every turn begins with its speaker.
        left_out: counts the turns that are skipped: kind -> count.

    Raises:
        BadRecord: There is no turn to read.
        BadRow: With everything that is wrong with the turns.
    """
    if is_missing(turns):
        raise BadRecord("row.no-turns", f"no conversation; {TURNS}")
    parsed_turns: list[Turn] = []
    problems: list[BadRecord] = []
    if isinstance(turns, str):
        turns = _parse_turns(turns)
    if not isinstance(turns, list):
        raise BadRecord("row.wrong-type", "conversation has the type %s; " + TURNS, type(turns).__name__)
    for index, turn in enumerate(turns):
        with collected(problems):
            if not isinstance(turn, dict) or "role" not in turn or "content" not in turn:
                raise BadRecord("row.not-a-turn", "turn %s of the conversation is not {role, content}; " + TURNS, index)
            role = turn["role"]
            content = _join_texts(turn["content"], index, left_out)
            if _is_tool_turn(turn, content):
                left_out["tool calls, tool results and turns without text"] += 1
            elif role in INSTRUCTIONS and not parsed_turns and not problems:
                left_out["system prompts"] += 1
            else:
                parsed_turns.append(_read_turn(role, content, index, turn.get("items")))
    if problems:
        raise BadRow(problems)
    if not parsed_turns:
        raise BadRecord("row.no-user", f"no turn of the user; {TURNS}")
    return parsed_turns


def _parse_turns(text: str) -> list[Any]:
    """Parse turns from text: a list as JSON or Python writes it, or lines that begin with the speaker."""
    if text.lstrip().startswith("["):
        for parse in (json.loads, ast.literal_eval):
            try:
                value = parse(text.strip())
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            if isinstance(value, list):
                return value
    turns = parse_turns(_clean(text))
    if not turns:
        raise BadRecord(
            "row.no-speaker",
            "the conversation does not begin with `USER: ` or `SYSTEM: `; begin every turn with one of them",
        )
    return turns


def _is_tool_turn(turn: Mapping[str, Any], content: str) -> bool:
    """Whether a turn is a tool call or its result, or has only content that is not text."""
    role = turn["role"]
    if isinstance(role, str) and (role == TOOL or normalise_name(role) in TOOL_SPEAKERS):
        return True
    return not content and bool(turn.get("tool_calls") or isinstance(turn["content"], list))


def _clean(text: str) -> str:
    """Unify line breaks and decode HTML entities. Raises BadRecord for a NUL character."""
    if "\0" in text:
        raise BadRecord("row.nul-character", "contains a NUL character; remove it")
    return decode_marks(_LINE_BREAK.sub("\n", text))


def conversation_text(turns: Sequence[Turn]) -> str:
    """Format turns as "USER: ...\\nSYSTEM: ...\\n".

    Args:
        turns: at least one.

    Raises:
        BadRecord: the last turn is not the user's.
    """
    if turns[-1].role != "user":
        raise BadRecord(
            "row.last-turn",
            "the last turn is not the user's, but a list must answer the user; end with a turn of the user",
        )
    return "".join(f"{SPEAKERS[turn.role]}: {turn.content}\n" for turn in turns)


def _join_texts(content: Any, index: int, left_out: Counter[str]) -> str:
    """Return a turn's text, joined if it comes in content blocks (OpenAI, Anthropic); count blocks without text."""
    if isinstance(content, list) and all(map(_is_block, content)):
        texts = [part if isinstance(part, str) else part.get("text") for part in content]
        texts = [text for text in texts if isinstance(text, str)]
        left_out["images and other content without text"] += len(content) - len(texts) if texts else 0
        content = "\n".join(texts)
    if not isinstance(content, str | None):
        raise BadRecord(
            "row.content-type",
            "the content of turn %s has the type %s; write a string",
            index,
            type(content).__name__,
        )
    return _clean(content or "").strip()


def _is_block(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and not {"type", "content_type"}.isdisjoint(part))


def _read_turn(role: Any, content: str, index: int, items: Any) -> Turn:
    if role in INSTRUCTIONS:
        raise BadRecord(
            "row.instruction",
            "turn %s has the role %r, which is an instruction to a model, not a turn of the user or recommender; "
            "write assistant for the recommender, or remove the turn",
            index,
            role,
        )
    if role not in tuple(SPEAKERS):  # a tuple also accepts unhashable values
        raise BadRecord(
            "row.unknown-role",
            "turn %s has the role %r; write user, or assistant for the recommender",
            index,
            role,
        )
    if not content:
        raise BadRecord("row.empty-turn", "turn %s has no text; remove it", index)
    another = TURN.search(content, 1)
    if another:
        raise BadRecord(
            "row.two-turns-in-one",
            "turn %s has a line that begins with %r and would start another turn; split the turn or change the line",
            index,
            another[0].strip(),
        )
    marker = TEMPLATE_MARKER.search(content)
    if marker:
        raise BadRecord(
            "row.template-marker",
            "turn %s contains %r, a marker of a chat template; give the messages as they were before templating",
            index,
            marker[0].strip(),
        )
    return Turn(role, content, items)


def _read_name(value: Any) -> str:
    name = None if isinstance(value, bool) or not isinstance(value, str | int | float) else normalise_id(value)
    if name is None and isinstance(value, str | float) and str(value).strip():
        raise make_truncated_id_error(value)
    if name is None:
        raise BadRecord("row.invalid-id", "is %r; write a string or a number, or leave it out", value)
    return name
