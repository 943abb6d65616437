"""What the conversions share: ids of rows, tables written piece by piece under a temporary name, numbers of a table."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.schema import CONVERSATION_MARKER, split_prompt
from convrec.lists.catalog import Catalog
from convrec.lists.matching import Matcher
from convrec.lists.ranks import format_item

Pair: TypeAlias = tuple[str, str]  # title, year as text; "" where items have no years
GROUP_ROWS = 4096  # of a parquet row group: with posts of 4,000 characters 16 MB
EXAMPLES = 5
# Speakers count. Of ReDial's 1,605 conversations with 4 words 4 come apart and 109 meet another; with 2 words 0 and
# 1,237, with 8 words 22 and 2.
BEGINNING_WORDS = 4
_TURN = re.compile(r"^(USER|SYSTEM): ", re.MULTILINE)


class SampleIds:
    """`<conversation>_t<reply>`, from a row's content alone, so that order, sharding and other rows do not change it.

    conversation: its name, where it has one, else 16 hexadecimal digits of the hash of its `beginning`;
    `data_prep.retrieval` and `data_prep.stages.rows` read it off an id. reply: twelve digits of the hash of prompt,
    ground truth and seen titles, then which occurrence this is: only rows alike in all three are told apart by their
    order.
    """

    def __init__(self) -> None:
        self.occurrences: Counter[int] = Counter()

    def __call__(self, prompt: str, truth: Sequence[Pair], seen: Sequence[str], conversation: str | None = None) -> str:
        name = conversation or f"{hash64(beginning(split_prompt(prompt)[1])):016x}"
        start = f"{name}_t{hash64(json.dumps([hash64(prompt), truth, seen])) % 10**12:012d}"
        key = hash64(start)
        self.occurrences[key] += 1
        return f"{start}{self.occurrences[key]}"


def beginning(conversation: str) -> str:
    """What contexts of one conversation have in common, where it has no name: the turns up to a user's, until they hold
    a few words, since not all that begins with "Hi" is one conversation. The whole of a shorter one."""
    turn = _TURN.search(conversation)
    while turn:
        following = _TURN.search(conversation, turn.end())
        start = conversation[: following.start() if following else None]
        if turn[1] == "USER" and len(start.split()) >= BEGINNING_WORDS:
            return start.strip()
        turn = following
    return conversation.strip()


def hash64(text: str) -> int:
    """64 bits of SHA-256, the same in every process: any collision among 383,013 texts has a chance of 4e-9."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])


class TableWriter:
    """A parquet file that is there whole or not at all: `with TableWriter(path, schema) as table: table.add(row)`.

    Memory holds one row group. On an exception the file under the temporary name is removed.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self.schema = path, schema
        self.partial = partial_name(path)
        self.pending: list[Mapping[str, Any]] = []
        self.metadata: dict[str, str] = {}  # written at the end

    def __enter__(self) -> "TableWriter":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.writer = pq.ParquetWriter(self.partial, self.schema)
        return self

    def add(self, row: Mapping[str, Any]) -> None:
        self.pending.append(row)
        if len(self.pending) == GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        self.writer.write_batch(pa.RecordBatch.from_pylist(self.pending, self.schema))
        self.pending = []

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            if self.pending:
                self._flush()
            self.writer.add_key_value_metadata(self.metadata)
        self.writer.close()
        if kind is None:
            self.partial.rename(self.path)
        else:
            self.partial.unlink()


def partial_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


@contextmanager
def whole_text(path: Path) -> Iterator[TextIO]:
    """A text file to write that is there whole or not at all."""
    partial = partial_name(path)
    try:
        with partial.open("w", encoding="utf-8") as file:
            yield file
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    with whole_text(path) as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def message(role: str, content: str) -> list[dict[str, str]]:
    return [{"content": content, "role": role}]


class TableNumbers:
    """Rows, contexts and ground truths of one table, counted row by row."""

    def __init__(self) -> None:
        self.rows = self.other_prompts = 0
        self.contexts: set[int] = set()
        self.truths: Counter[Pair] = Counter()
        self.sizes: Counter[int] = Counter()  # ground truths of a row -> rows

    def add(self, prompt: str, truth: Iterable[Pair]) -> None:
        pairs = list(truth)
        self.rows += 1
        self.contexts.add(hash64(prompt))
        self.truths.update(pairs)
        self.sizes[len(pairs)] += 1
        self.other_prompts += CONVERSATION_MARKER not in prompt

    def summary(self, matcher: Matcher | None) -> dict[str, Any]:
        """As summary.json holds it; `outside_catalog` is null without a matcher. `prompts_of_another_form` have no
        "Here is the conversation: ", so a prompt that is too long loses its start whatever stands there."""
        mentions = self.truths.total()
        found: dict[str, Any] = {
            "rows": self.rows,
            "contexts": len(self.contexts),
            "ground_truths": {
                "mean": round(mentions / self.rows, 4) if self.rows else 0.0,
                "most": max(self.sizes, default=0),
                "rows_without": self.sizes[0],
                "titles": len(self.truths),
            },
            "prompts_of_another_form": self.other_prompts,
            "outside_catalog": None,
        }
        if matcher is not None:
            outside = {pair: count for pair, count in self.truths.items() if not _known(matcher, pair)}
            most = sorted(outside, key=lambda pair: (-outside[pair], pair))[:EXAMPLES]
            found["outside_catalog"] = {
                "mentions": sum(outside.values()),
                "share": round(sum(outside.values()) / mentions, 4) if mentions else 0.0,
                "titles": len(outside),
                "most_frequent": [format_item(title, matcher.catalog.year_of(year) or 0) for title, year in most],
            }
        return found


def _known(matcher: Matcher, pair: Pair) -> bool:
    year = matcher.catalog.year_of(pair[1])
    return year is not None and matcher.identify(pair[0], year).index >= 0


def describe(name: str, numbers: Mapping[str, Any]) -> str:
    """One line of what a conversion prints about a table."""
    truths, outside = numbers["ground_truths"], numbers["outside_catalog"]
    parts = [
        f"{name:<15}{numbers['rows']:>8,} rows",
        f"{numbers['contexts']:,} contexts",
        f"{truths['mean']:.2f} ground truths a row, {truths['most']} at most",
    ]
    if truths["rows_without"]:
        parts.append(f"{truths['rows_without']:,} rows without")
    if outside is not None:
        parts.append(f"{100 * outside['share']:.1f} % of mentions outside the catalog ({outside['titles']:,} titles)")
    if numbers["prompts_of_another_form"]:
        parts.append(f"{numbers['prompts_of_another_form']:,} prompts of another form")
    return "; ".join(parts)


def conversation_of(sample_id: str) -> str:
    """`redial_15875_t6` and, for one of several demonstrations, `redial_15875_t6.2` -> `redial_15875`."""
    return re.sub(r"_t\d+(?:\.\d+)?$", "", sample_id)


def truth_of(row: dict) -> list[Pair]:
    return [(title, year) for title, year in row["groundtruth_with_release_year"]]


def catalog_pairs(catalog: Catalog) -> list[Pair]:
    """The catalog's items, in its order, as ground truth names them; one that lacks its year is never named."""
    years = map(str, catalog.years) if catalog.dated else [""] * len(catalog)
    return list(zip(catalog.titles, years, strict=True))


def conversation_text(row: dict) -> str:
    return split_prompt(row["prompt"][0]["content"])[1]
