"""Parquet columns, the released prompt and its truncation; convrec.data.validation checks tables.

RL table:  prompt (one user message), seen_titles, groundtruth_with_release_year ([title, "YYYY"] pairs, [title, ""]
           where items have no years), sample_id.
SFT table: the same and completion (one assistant message). Demonstrations that have no ground truth (a judge's) have
           prompt, completion and sample_id alone.
Catalog:   title, year (null in every row where items have no years), and whatever else (`mentions`).
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

Pair: TypeAlias = tuple[str, str]  # a ground truth: title, year as text; "" where items have no years
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

TURN = re.compile(r"^(USER|SYSTEM): ", re.MULTILINE)  # where a turn of a conversation begins
SPEAKERS = {"user": "USER", "assistant": "SYSTEM"}  # role of a chat -> who speaks there
# Speakers in a text that people write, each as the first of them is: `User:` within a turn of `USER:` is text.
WRITTEN_SPEAKERS = tuple(
    re.compile(rf"^({'|'.join(map(case, ('user', 'system', 'assistant', 'recommender')))}):[ \t]*", re.MULTILINE)
    for case in (str.upper, str.title)
)
_WORD = re.compile(r"\S+")


def prompt_text(conversation: str, num_items: int = 20, item: str = "movie", dated: bool = True) -> str:
    """The released prompt around `conversation` ("USER: ...\\nSYSTEM: ...\\n"); for other items than movies with their
    noun, and where items have no years (not `dated`) without asking for them."""
    template = INSTRUCTION_TEMPLATE if dated else INSTRUCTION_TEMPLATE.replace(" (release_year)", "")
    article = "an" if item[:1].lower() in tuple("aeiou") else "a"
    instruction = template.format(num_items=num_items).replace("a movie", f"{article} movie").replace("movie", item)
    return instruction + conversation


def turns_of_text(text: str) -> list[dict[str, str]]:
    """The messages of a text in which every turn begins with its speaker; [] where it does not begin with one."""
    text = re.sub("\r\n?", "\n", text).strip()
    turns = next((list(speakers.finditer(text)) for speakers in WRITTEN_SPEAKERS if speakers.match(text)), [])
    ends = [*(turn.start() for turn in turns[1:]), len(text)]
    return [
        {"role": "user" if turn[1].upper() == "USER" else "assistant", "content": text[turn.end() : end].strip()}
        for turn, end in zip(turns, ends, strict=False)
    ]


def split_prompt(text: str) -> tuple[str, str]:
    """(instruction, conversation); a prompt of another form, without the marker, is all conversation."""
    head, marker, tail = text.partition(CONVERSATION_MARKER)
    return (head + marker, tail) if marker else ("", text)


def conversation_text(row: Mapping[str, Any]) -> str:
    return split_prompt(row["prompt"][0]["content"])[1]


def parse_conversation_id(sample_id: str) -> str:
    """`redial_15875_t6` and, for one of several demonstrations or of its turns, `redial_15875_t6.2` and
    `redial_15875_t6_q1` -> `redial_15875`; an id that names no conversation is itself."""
    return re.sub(r"_t\d+(?:\.\d+)?(?:_q\d+)?$", "", sample_id)


def before_questions(conversation: str) -> str:
    """Without the questions that end it, 99 at most, and their answers (convrec/features/asking/turns.py)."""
    return re.sub(r"(?m)(?:^SYSTEM: Which [^\n]+\?\nUSER: [^\n]*\n){1,99}+\Z", "", conversation)


def get_group_id(row: Mapping[str, Any]) -> str:
    """What must not be torn apart: the row's conversation where its id names one, else the rows of its text.

    Ids that differ in case alone are one: a UUID is written in either.
    """
    name = parse_conversation_id(row["sample_id"])
    if name != row["sample_id"]:
        return normalise_text(name)
    text = normalise_text(before_questions(conversation_text(row)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def normalise_text(conversation: str) -> str:
    """The text, or an id, without what makes no other conversation: case, white space, widths of letters."""
    return " ".join(unicodedata.normalize("NFKC", conversation).casefold().split())


def get_truth(row: Mapping[str, Any]) -> list[Pair]:
    """The row's ground truths; none where the column is null."""
    return [(title, year) for title, year in row[TRUTH] or ()]


def truncate_prompt(text: str, fits: Callable[[str], bool]) -> str:
    """Drop the oldest conversation text until `fits(prompt)`; the instruction stays whole.

    The oldest turns go first, then the oldest words of the first turn kept (it keeps its speaker), and only
    where a single word is too long, characters. `fits` is called O(log n) times and is taken to be monotone.
    Raises UserError when the instruction alone does not fit.
    """
    if fits(text):
        return text
    instruction, conversation = split_prompt(text)
    if not fits(instruction):
        raise UserError(
            "the prompt's instruction alone is longer than the limit: raise the maximum prompt length "
            "(MAX_PROMPT_LENGTH) so that it holds the instruction and some conversation"
        )

    cuts = _cuts(conversation)

    def is_short_enough(cut: tuple[str, int]) -> bool:
        return fits(instruction + cut[0] + conversation[cut[1] :])

    kept = _first_short_enough(cuts, is_short_enough)
    if kept == len(cuts):  # not even the last word fits
        label, start = cuts[-1]
        cuts = [(label, character) for character in range(start, len(conversation))]
        kept = _first_short_enough(cuts, is_short_enough)
    return instruction + "".join(label + conversation[start:] for label, start in cuts[kept : kept + 1])


def _first_short_enough(cuts: Sequence[tuple[str, int]], is_short_enough: Callable[[tuple[str, int]], bool]) -> int:
    """Index of the first cut that is short enough; len(cuts) if none is.

    The search begins with the shortest text and doubles it, so that no text is tried that is much longer than the one
    that is kept: tokenizing a text takes time in proportion to its length.
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


def _cuts(conversation: str) -> list[tuple[str, int]]:
    """(label, start) of what can be kept, ever less: all from a turn on, then from each of its words on, which get the
    turn's speaker as label."""
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


def is_like(kind: pa.DataType, wanted: pa.DataType, null: bool = False) -> bool:
    """Whether a column of texts, lists and structs can be read as `wanted`: with large offsets or not, with further
    struct fields in any order and, where `null` says so, null where there are no values."""
    if pa.types.is_null(kind):
        return null
    if pa.types.is_struct(wanted):
        return pa.types.is_struct(kind) and all(
            kind.get_field_index(field.name) >= 0 and is_like(kind.field(field.name).type, field.type, null)
            for field in wanted
        )
    if pa.types.is_list(wanted):
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        return is_list and is_like(kind.value_type, wanted.value_type, null)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_demonstration_table(path: str | os.PathLike) -> bool:
    """Whether a table has prompts and completions, but none of the columns about titles."""
    try:
        names = set(pq.read_schema(path).names)
    except (FileNotFoundError, pa.ArrowInvalid, OSError):
        return False  # validation says what is wrong
    return set(DEMONSTRATION_COLUMNS) <= names and not names & {"seen_titles", TRUTH}
