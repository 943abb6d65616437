"""The first rows as they would be trained, in one screen: prompt, seen, wanted and why."""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from convrec.base.errors import UserError
from convrec.data.damage import Damage, format_place
from convrec.data.schema import prompt_text
from convrec.titles.item import format_item
from data_prep.own_data.rows import Row
from data_prep.own_data.source import ReadingOptions, open_source

LINES_OF_CONVERSATION = 8
LONGEST_LINE = 160  # characters
LINES_OF_FINDINGS = 6


def preview(
    count: int,
    conversations: Sequence[str | Path],
    catalog: str | Path,
    *,
    num_items: int,
    item: str,
    reading: ReadingOptions,
) -> str:
    """Show what would become of the first rows, what was guessed and left out up to there, and what is wrong.

    Args:
        count: rows to show.
        conversations: the files.
        catalog: the catalog's file.
        num_items: the items that a prompt asks for.
        item: what a prompt calls an item.
        reading: how the conversations are read.

    Raises:
        UserError: A file cannot be read at all.
    """
    damage = Damage()
    items, source = open_source([Path(path) for path in conversations], Path(catalog), num_items, damage, reading)
    lines: list[str] = []
    for path, number, row in islice(source.rows(damage), count):
        instruction = prompt_text("", num_items, item, source.reader.dated) if not lines else ""
        lines += _show_row(format_place(path, number), row, instruction)
    try:
        damage.check()
    except UserError as error:
        lines += _cut(str(error).splitlines(), LINES_OF_FINDINGS)
    return "\n".join([*items.told, *source.told(), *(lines or [source.describe_emptiness()])])


def _show_row(place: str, row: Row, instruction: str) -> Iterator[str]:
    """The lines of a row; instruction: what its prompt begins with, where it is to be shown."""
    yield f"--- {place}"
    if instruction:
        yield _shorten(f"prompt: {' '.join(instruction.split())}")
    yield from map(_shorten, _cut(row.conversation.rstrip().split("\n"), LINES_OF_CONVERSATION, from_end=True))
    truth = [f"{title} ({year})" if year else title for title, year in row.truth]
    yield _shorten(f"seen: {' | '.join(row.seen) or '-'}")
    yield _shorten(f"ground truth: {' | '.join(truth) or '-'}")
    yield _shorten(f"demonstration: {' | '.join(format_item(*entry) for entry in row.demonstration) or '-'}")
    yield _shorten(f"why: {' '.join(row.why.split())}")


def _shorten(line: str) -> str:
    return textwrap.shorten(line, LONGEST_LINE, placeholder=" ...") if len(line) > LONGEST_LINE else line


def _cut(lines: Sequence[str], most: int, from_end: bool = False) -> list[str]:
    """At most so many lines, the first or the last ones, and how many more there are."""
    if len(lines) <= most:
        return list(lines)
    more = f"... {len(lines) - most + 1} more lines"
    return [more, *lines[len(lines) - most + 1 :]] if from_end else [*lines[: most - 1], more]
