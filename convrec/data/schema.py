"""Parquet columns, the released prompt and its truncation; convrec.data.validation checks tables.

RL table:  prompt (one user message), seen_titles, groundtruth_with_release_year ([title, "YYYY"] pairs, [title, ""]
           if items have no years), sample_id.
SFT table: the same plus completion (one assistant message). Demonstrations without ground truth (a judge's) have only
           prompt, completion and sample_id.
Catalog:   title, year (null in every row if items have no years), and any further columns (`mentions`).
"""

import hashlib
import os
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError

Pair: TypeAlias = tuple[str, str]  # a ground truth: title, year as text; "" if items have no years
TRUTH = "groundtruth_with_release_year"
MESSAGES = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
RL_SCHEMA = pa.schema(
    [
        ("prompt", MESSAGES),
        ("seen_titles", pa.list_(pa.string())),
        (TRUTH, pa.list_(pa.list_(pa.string()))),
        ("sample_id", pa.string()),
    ]
)
SFT_SCHEMA = RL_SCHEMA.append(pa.field("completion", MESSAGES))
DEMONSTRATION_SCHEMA = pa.schema([SFT_SCHEMA.field(name) for name in ("prompt", "completion", "sample_id")])
CATALOG_SCHEMA = pa.schema([("title", pa.string()), ("year", pa.int32())])
PROMPT_COLUMNS = tuple(RL_SCHEMA.names)
DEMONSTRATION_COLUMNS = tuple(DEMONSTRATION_SCHEMA.names)

# Verbatim from the Reddit-v2 release; the line breaks and the trailing space are part of it.
INSTRUCTION_TEMPLATE = (
    "Pretend you are a movie recommender system.\n"
    "I will give you a conversation between a user and you (a recommender system). Based on the conversation, "
    "you need to reply with {num_items} recommendations. List the standardized English title of each movie in each "
    'line in the form of "movie name" (release_year) with NO extra words or sentences.\n'
    "Here is the conversation: "
)
CONVERSATION_MARKER = "Here is the conversation: "

TURN = re.compile(r"^(USER|SYSTEM): ", re.MULTILINE)  # the start of a turn
SPEAKERS = {"user": "USER", "assistant": "SYSTEM"}  # role in a chat -> speaker in a conversation
# Speakers in a text written by hand. All turns use the case of the first one: `User:` inside a turn of `USER:` is text.
WRITTEN_SPEAKERS = tuple(
    re.compile(rf"^({'|'.join(map(case, ('user', 'system', 'assistant', 'recommender')))}):[ \t]*", re.MULTILINE)
    for case in (str.upper, str.title)
)
_WORD = re.compile(r"\S+")


def format_prompt(conversation: str, num_items: int = 20, item: str = "movie", dated: bool = True) -> str:
    """Return the released prompt for a conversation.

    Args:
        conversation: "USER: ...\\nSYSTEM: ...\\n".
        num_items: how many recommendations the prompt asks for.
        item: what one is called, such as "movie".
        dated: whether items have years, which the prompt then asks for.
    """
    template = INSTRUCTION_TEMPLATE if dated else INSTRUCTION_TEMPLATE.replace(" (release_year)", "")
    article = "an" if item[:1].lower() in tuple("aeiou") else "a"
    instruction = template.format(num_items=num_items).replace("a movie", f"{article} movie").replace("movie", item)
    return instruction + conversation


def parse_turns(text: str) -> list[dict[str, str]]:
    """Split a text into messages at its speakers; [] if it does not begin with a speaker."""
    text = re.sub("\r\n?", "\n", text).strip()
    turns = next((list(speakers.finditer(text)) for speakers in WRITTEN_SPEAKERS if speakers.match(text)), [])
    ends = [*(turn.start() for turn in turns[1:]), len(text)]
    return [
        {"role": "user" if turn[1].upper() == "USER" else "assistant", "content": text[turn.end() : end].strip()}
        for turn, end in zip(turns, ends, strict=False)
    ]


def split_prompt(text: str) -> tuple[str, str]:
    """Split a prompt into its instruction and its conversation.

    Args:
        text: the content of a prompt's message.

    Returns:
        The instruction, with the marker at its end, and the conversation. Without the marker the instruction is "", and
        all of the text is conversation.
    """
    head, marker, tail = text.partition(CONVERSATION_MARKER)
    return (head + marker, tail) if marker else ("", text)


def conversation_text(row: Mapping[str, Any]) -> str:
    """Return the conversation in a row's prompt."""
    return split_prompt(row["prompt"][0]["content"])[1]


def parse_conversation_id(sample_id: str) -> str:
    """Return the conversation that a sample belongs to.

    `redial_15875_t6`, `redial_15875_t6.2` (one of several demonstrations) and `redial_15875_t6_q1` (a turn of it) all
    give `redial_15875`. Any other id is returned unchanged.
    """
    return re.sub(r"_t\d+(?:\.\d+)?(?:_q\d+)?$", "", sample_id)


def strip_questions(conversation: str) -> str:
    """Strip up to 99 closing questions and their answers from a conversation (convrec/features/asking/turns.py)."""
    return re.sub(r"(?m)(?:^SYSTEM: Which [^\n]+\?\nUSER: [^\n]*\n){1,99}+\Z", "", conversation)


def get_group_id(row: Mapping[str, Any]) -> str:
    """Return the group of rows that must stay in one split: those of a conversation, or of the same text.

    The id names the conversation; without one, the text decides. Case does not matter: UUIDs are written in either.
    """
    name = parse_conversation_id(row["sample_id"])
    if name != row["sample_id"]:
        return normalise_text(name)
    text = normalise_text(strip_questions(conversation_text(row)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def normalise_text(conversation: str) -> str:
    """Normalize case, white space and letter widths of a text or an id, so that equal conversations compare equal."""
    return " ".join(unicodedata.normalize("NFKC", conversation).casefold().split())


def get_truth(row: Mapping[str, Any]) -> list[Pair]:
    """Return the row's ground truths, [] if the column is null."""
    return [(title, year) for title, year in row[TRUTH] or ()]


def truncate_prompt(text: str, fits: Callable[[str], bool]) -> str:
    """Drop the oldest part of the conversation until the prompt fits; the instruction stays complete.

    The oldest turns go first, then the oldest words of the first remaining turn (which keeps its speaker), and
    characters only if a single word is too long.

    Args:
        text: the prompt.
        fits: whether a prompt is short enough. It is called O(log n) times and must be monotone.

    Returns:
        The longest such prompt; the instruction alone if no character of the conversation fits.

    Raises:
        UserError: the instruction alone does not fit.
    """
    if fits(text):
        return text
    instruction, conversation = split_prompt(text)
    if not fits(instruction):
        raise UserError(
            "prompt.instruction-too-long",
            "the prompt's instruction alone exceeds the maximum prompt length. Raise MAX_PROMPT_LENGTH so that the "
            "instruction and some of the conversation fit",
        )

    cuts = _find_cuts(conversation)

    def is_short_enough(cut: tuple[str, int]) -> bool:
        return fits(instruction + cut[0] + conversation[cut[1] :])

    index = _find_first_cut(cuts, is_short_enough)
    if index == len(cuts):  # not even the last word fits
        label, start = cuts[-1]
        cuts = [(label, character) for character in range(start, len(conversation))]
        index = _find_first_cut(cuts, is_short_enough)
    return instruction + "".join(label + conversation[start:] for label, start in cuts[index : index + 1])


def _find_first_cut(cuts: Sequence[tuple[str, int]], is_short_enough: Callable[[tuple[str, int]], bool]) -> int:
    """Return the index of the first cut that is short enough, len(cuts) if none is.

    The search starts with the shortest text and doubles its length, so that it never tries a text that is much longer
    than the result: tokenizing takes time in proportion to the length.
    """
    fitting = len(cuts)
    length = 1
    while fitting:
        index = max(0, len(cuts) - length)
        if not is_short_enough(cuts[index]):
            return bisect_left(cuts, True, lo=index + 1, hi=fitting, key=is_short_enough)
        fitting = index
        length *= 2
    return 0


def _find_cuts(conversation: str) -> list[tuple[str, int]]:
    """Return all places where the kept part may start, from the first to the last, as (label, start).

    They are the start of each turn, and each word in it; a part that starts at a word gets the turn's speaker as label.
    """
    starts = [turn.start() for turn in TURN.finditer(conversation)]
    if not starts or starts[0] > 0:
        starts.insert(0, 0)  # text before the first speaker
    cuts = []
    for start, end in pairwise([*starts, len(conversation)]):
        turn = TURN.match(conversation, start)
        label = turn.group() if turn else ""
        body = start + len(label)
        words = [word.start() for word in _WORD.finditer(conversation, body, end)]
        cuts += [("", start), *((label, word) for word in words or [body])]
    return cuts


def is_like(kind: pa.DataType, expected: pa.DataType, null: bool = False) -> bool:
    """Return whether a column can be read as `expected`.

    Offsets may be large, and structs may have further fields, in any order.

    Args:
        kind: the column's type: text, list or struct.
        expected: the type of the schema.
        null: whether a part without any values may be null.
    """
    if pa.types.is_null(kind):
        return null
    if pa.types.is_struct(expected):
        return pa.types.is_struct(kind) and all(
            kind.get_field_index(field.name) >= 0 and is_like(kind.field(field.name).type, field.type, null)
            for field in expected
        )
    if pa.types.is_list(expected):
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        return is_list and is_like(kind.value_type, expected.value_type, null)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_demonstration_table(path: str | os.PathLike) -> bool:
    """Return whether a table has prompts and completions, but no columns about titles."""
    try:
        names = set(pq.read_schema(path).names)
    except (FileNotFoundError, pa.ArrowInvalid, OSError):
        return False  # validation reports the problem
    return set(DEMONSTRATION_COLUMNS) <= names and not names & {"seen_titles", TRUTH}
