"""Show the first training rows on one screen: prompt, seen items, ground truth and where it comes from."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from convrec.base.errors import UserError
from convrec.data.damage import Damage, format_place
from convrec.data.schema import format_prompt
from convrec.titles.item import format_item
from data_prep.own_data.rows import Row
from data_prep.own_data.source import ReadingOptions, open_source

MAX_CONVERSATION_LINES = 8
LONGEST_LINE = 160  # characters
MAX_PROBLEM_LINES = 6


def format_preview(
    count: int,
    conversations: Sequence[str | Path],
    catalog: str | Path,
    *,
    num_items: int,
    item: str,
    reading: ReadingOptions,
) -> str:
    """Format the first rows as they would be trained, with guesses, skipped records and problems up to there.

    Args:
        count: rows to show.
        conversations: files of conversations.
        catalog: the catalog's file.
        num_items: items that a prompt asks for.
        item: what a prompt calls an item.
        reading: how the conversations are read.

    Raises:
        UserError: A file cannot be read at all.
    """
    damage = Damage()
    items, source = open_source([Path(path) for path in conversations], Path(catalog), num_items, damage, reading)
    lines: list[str] = []
    for path, number, row in islice(source.iter_rows(damage), count):
        instruction = format_prompt("", num_items, item, source.reader.has_years) if not lines else ""
        lines += _format_row(format_place(path, number), row, instruction)
    try:
        damage.check()
    except UserError as error:
        lines += _cut(str(error).splitlines(), MAX_PROBLEM_LINES)
    return "\n".join([*items.notes, *source.describe_reading(), *(lines or [source.describe_emptiness()])])


def _format_row(place: str, row: Row, instruction: str) -> Iterator[str]:
    """Yield the lines of a row. instruction: the beginning of its prompt; "" to omit it."""
    yield f"--- {place}"
    if instruction:
        yield _shorten(f"prompt: {' '.join(instruction.split())}")
    yield from map(_shorten, _cut(row.conversation.rstrip().split("\n"), MAX_CONVERSATION_LINES, from_end=True))
    truth = [f"{title} ({year})" if year else title for title, year in row.truth]
    yield _shorten(f"seen: {' | '.join(row.seen) or '-'}")
    yield _shorten(f"ground truth: {' | '.join(truth) or '-'}")
    yield _shorten(f"demonstration: {' | '.join(format_item(*entry) for entry in row.demonstration) or '-'}")
    yield _shorten(f"why: {' '.join(row.why.split())}")


def _shorten(line: str) -> str:
    return textwrap.shorten(line, LONGEST_LINE, placeholder=" ...") if len(line) > LONGEST_LINE else line


def _cut(lines: Sequence[str], most: int, from_end: bool = False) -> list[str]:
    """Keep the first (or last) lines, at most `most`, with a line that counts the rest."""
    if len(lines) <= most:
        return list(lines)
    more = f"... {len(lines) - most + 1} more lines"
    return [more, *lines[len(lines) - most + 1 :]] if from_end else [*lines[: most - 1], more]
