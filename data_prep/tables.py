"""What the conversions share: ids of rows, tables written piece by piece under a temporary name, numbers of a table."""

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
from convrec.base.files import written_whole
from convrec.data.schema import CONVERSATION_MARKER, TURN, Pair, split_prompt
from convrec.titles.catalog import Catalog
from convrec.titles.item import format_item
from convrec.titles.matching import Matcher

GROUP_ROWS = 4096  # of a parquet row group: with posts of 4,000 characters 16 MB
EXAMPLES = 5
# Speakers count. Of ReDial's 1,605 conversations with 4 words 4 come apart and 109 meet another; with 2 words 0 and
# 1,237, with 8 words 22 and 2.
BEGINNING_WORDS = 4


def check_out(out: Path, overwrite: bool | None = None, ours: Set[str] = frozenset()) -> None:
    """Raise UserError where the folder `out` is there, with `overwrite` where it holds anything else than `ours`, and
    where it cannot be made. overwrite: --overwrite, None where a command has no such option."""
    above = next(part for part in out.absolute().parents if part.exists())
    if not above.is_dir():
        raise UserError(f"{out}: {above} is a file; give another --out")
    if not out.exists():
        return
    if not overwrite:
        how = "move it away" if overwrite is None else "give --overwrite to replace it"
        raise UserError(f"{out}: already there; {how}, or another --out")
    if out.resolve() == Path.cwd():
        raise UserError(f"{out}: the current folder, which cannot be replaced; give another --out")
    if not out.is_dir() or (others := sorted({path.name for path in out.iterdir()} - ours)):
        what = f"holds {others[0]}" if out.is_dir() else "is a file"
        raise UserError(f"{out}: {what}, which this command did not write, so it is not replaced; give another --out")


class SampleIds:
    """`<conversation>_t<reply>`, from a row's content alone, so that order, sharding and other rows do not change it.

    conversation: its name, where it has one, else 16 hexadecimal digits of the hash of its `beginning`;
    `parse_conversation_id` reads it off an id. reply: twelve digits of the hash of prompt, ground truth and seen
    titles, then which occurrence this is: only rows alike in all three are told apart by their order.
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
    turn = TURN.search(conversation)
    while turn:
        following = TURN.search(conversation, turn.end())
        start = conversation[: following.start() if following else None]
        if turn[1] == "USER" and len(start.split()) >= BEGINNING_WORDS:
            return start.strip()
        turn = following
    return conversation.strip()


def hash64(text: str) -> int:
    """64 bits of SHA-256, the same in every process: any collision among 383,013 texts has a chance of 4e-9."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])


def split_by_hash(hashed: int, validation: float, test: float) -> str:
    """The split of 64 hashed bits, at these shares: the same whatever else is in the data."""
    share = hashed / 2**64
    return "test" if share < test else "validation" if share < test + validation else "train"


@contextmanager
def parquet_writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Batches written as they come; the file appears when the block ends well."""
    with written_whole(path) as partial, pq.ParquetWriter(partial, schema) as writer:
        yield writer


@contextmanager
def table_writer(path: Path, schema: pa.Schema) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yields what takes a row; memory holds one row group of them. The file appears when the block ends well."""
    pending: list[Mapping[str, Any]] = []
    with parquet_writer(path, schema) as writer:

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
    return [{"content": content, "role": role}]


class TableNumbers:
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
    return matcher.wanted(*pair).index >= 0


def describe(name: str, numbers: Mapping[str, Any]) -> str:
    truths = numbers["ground_truths"]
    outside = numbers["outside_catalog"]
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


def catalog_pairs(catalog: Catalog) -> list[Pair]:
    """The catalog's items, in its order, as ground truth names them; one that lacks its year is never named."""
    years = map(str, catalog.years) if catalog.dated else [""] * len(catalog)
    return list(zip(catalog.titles, years, strict=True))
