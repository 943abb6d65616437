"""Helpers that the conversions share: output folders, row ids, tables written in pieces, statistics of a table."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import atomic_write
from convrec.data.schema import CONVERSATION_MARKER, TURN, Pair, split_prompt
from convrec.titles.catalog import Catalog
from convrec.titles.item import format_item
from convrec.titles.matching import Matcher

GROUP_ROWS = 4096  # rows per parquet row group: 16 MB for posts of 4,000 characters
EXAMPLES = 5
# Speakers count as words. Of ReDial's 1,605 conversations, 4 words divide 4 and merge 109; 2 words divide 0 and merge
# 1,237; 8 words divide 22 and merge 2.
OPENING_WORDS = 4


def check_out(out: Path, overwrite: bool | None = None, ours: Set[str] = frozenset()) -> None:
    """Check that a command may create or replace its output folder.

    Args:
        out: the folder.
        overwrite: value of --overwrite; None if the command has no such option.
        ours: names of the files that the command writes; a folder that holds others is not replaced.

    Raises:
        UserError: The folder exists and may not be replaced, or cannot be created.
    """
    above = next(part for part in out.absolute().parents if part.exists())
    if not above.is_dir():
        raise UserError("output.file-in-path", f"{out}: {above} is a file; give another --out")
    if not out.exists():
        return
    if not overwrite:
        fix = "move it away" if overwrite is None else "give --overwrite to replace it"
        raise UserError("output.already-there", f"{out}: already there; {fix}, or give another --out")
    if out.resolve() == Path.cwd():
        raise UserError(
            "output.current-folder", f"{out}: the current folder, which cannot be replaced; give another --out"
        )
    others = sorted({path.name for path in out.iterdir()} - ours) if out.is_dir() else []
    if others or not out.is_dir():
        obstacle = f"contains {others[0]}" if others else "is a file"
        raise UserError(
            "output.foreign-file",
            f"{out}: {obstacle}, which this command did not write, so it is not replaced; give another --out",
        )


class SampleIds:
    """Make sample ids `<conversation>_t<reply>` from the content of a row, whatever the order, shards or other rows.

    `<conversation>` is the conversation's name or, without one, 16 hexadecimal digits of the hash of its opening;
    `parse_conversation_id` recovers it. `<reply>` is 12 digits of the hash of prompt, ground truth and seen titles,
    followed by the number of the occurrence: the order of rows matters only if all three are equal.
    """

    def __init__(self) -> None:
        self.occurrences: Counter[int] = Counter()

    def __call__(self, prompt: str, truth: Sequence[Pair], seen: Sequence[str], conversation: str | None = None) -> str:
        name = conversation or f"{hash64(get_opening(split_prompt(prompt)[1])):016x}"
        start = f"{name}_t{hash64(json.dumps([hash64(prompt), truth, seen])) % 10**12:012d}"
        key = hash64(start)
        self.occurrences[key] += 1
        return f"{start}{self.occurrences[key]}"


def get_opening(conversation: str) -> str:
    """Return the opening that identifies a conversation without a name: all its contexts begin with it.

    It ends with the first turn of the user at which it has OPENING_WORDS words, since not everything that begins with
    "Hi" is one conversation. A shorter conversation is returned as a whole.
    """
    turn = TURN.search(conversation)
    while turn:
        following = TURN.search(conversation, turn.end())
        start = conversation[: following.start() if following else None]
        if turn[1] == "USER" and len(start.split()) >= OPENING_WORDS:
            return start.strip()
        turn = following
    return conversation.strip()


def hash64(text: str) -> int:
    """Return 64 bits of SHA-256, the same in every process; among 383,013 texts a collision has probability 4e-9."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])


def split_by_hash(hashed: int, validation: float, test: float) -> str:
    """Return the split for a hash, whatever else is in the data.

    Args:
        hashed: 64 bits.
        validation: share of the hashes for validation.
        test: share of the hashes for test.
    """
    share = hashed / 2**64
    return "test" if share < test else "validation" if share < test + validation else "train"


@contextmanager
def open_parquet_writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Open a parquet file for writing batches; it appears when the block ends without an error.

    Args:
        path: the file, which is replaced.
        schema: of every batch.
    """
    with atomic_write(path) as partial, pq.ParquetWriter(partial, schema) as writer:
        yield writer


@contextmanager
def open_table_writer(path: Path, schema: pa.Schema) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Open a parquet file for writing rows; it appears when the block ends without an error.

    Yields:
        A function that takes a row. One row group is held in memory.
    """
    pending: list[Mapping[str, Any]] = []
    with open_parquet_writer(path, schema) as writer:

        def write_pending() -> None:
            writer.write_batch(pa.RecordBatch.from_pylist(pending, schema))
            pending.clear()

        def add(row: Mapping[str, Any]) -> None:
            pending.append(row)
            if len(pending) == GROUP_ROWS:
                write_pending()

        yield add
        if pending:
            write_pending()


def message(role: str, content: str) -> list[dict[str, str]]:
    """Return a list of one chat message."""
    return [{"content": content, "role": role}]


class TableNumbers:
    """Statistics of one table, collected one row at a time."""

    def __init__(self) -> None:
        self.rows = 0
        self.other_prompts = 0
        self.contexts: set[int] = set()
        self.truths: Counter[Pair] = Counter()
        self.sizes: Counter[int] = Counter()  # number of ground truths -> rows that have so many

    def add(self, prompt: str, truth: Iterable[Pair]) -> None:
        """Count a row.

        Args:
            prompt: its text.
            truth: its ground truths.
        """
        pairs = list(truth)
        self.rows += 1
        self.contexts.add(hash64(prompt))
        self.truths.update(pairs)
        self.sizes[len(pairs)] += 1
        self.other_prompts += CONVERSATION_MARKER not in prompt

    def summary(self, matcher: Matcher | None) -> dict[str, Any]:
        """Return the statistics as summary.json holds them.

        `prompts_of_another_form` lack "Here is the conversation: ", so if they are too long, their start is cut off
        whatever it contains.

        Args:
            matcher: of the catalog; None leaves `outside_catalog` null.
        """
        mentions = self.truths.total()
        summary: dict[str, Any] = {
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
            outside = {pair: count for pair, count in self.truths.items() if not is_known(matcher, pair)}
            most = sorted(outside, key=lambda pair: (-outside[pair], pair))[:EXAMPLES]
            summary["outside_catalog"] = {
                "mentions": sum(outside.values()),
                "share": round(sum(outside.values()) / mentions, 4) if mentions else 0.0,
                "titles": len(outside),
                "most_frequent": [
                    format_item(title, matcher.catalog.normalise_year(year) or 0) for title, year in most
                ],
            }
        return summary


def is_known(matcher: Matcher, pair: Pair) -> bool:
    """Return whether a ground truth is in the catalog.

    Args:
        matcher: of the catalog.
        pair: title and year; the year is "" if the catalog has none.
    """
    return matcher.wanted(*pair).index >= 0


def describe_table(name: str, numbers: Mapping[str, Any]) -> str:
    """Format the statistics of a table as one line.

    Args:
        name: of the table.
        numbers: from `TableNumbers.summary`.
    """
    truths = numbers["ground_truths"]
    outside = numbers["outside_catalog"]
    parts = [
        f"{name:<15}{numbers['rows']:>8,} rows",
        f"{numbers['contexts']:,} contexts",
        f"{truths['mean']:.2f} ground truths per row, {truths['most']} at most",
    ]
    if truths["rows_without"]:
        parts.append(f"{truths['rows_without']:,} rows without ground truth")
    if outside is not None:
        parts.append(f"{100 * outside['share']:.1f} % of mentions outside the catalog ({outside['titles']:,} titles)")
    if numbers["prompts_of_another_form"]:
        parts.append(f"{numbers['prompts_of_another_form']:,} prompts in another format")
    return "; ".join(parts)


def list_catalog_pairs(catalog: Catalog) -> list[Pair]:
    """Return the catalog's items in order, as ground truth names them; items without a year never match."""
    years = map(str, catalog.years) if catalog.dated else [""] * len(catalog)
    return list(zip(catalog.titles, years, strict=True))
