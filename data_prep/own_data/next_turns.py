"""Infer the ground truth from the next turns: the items named by the recommender's answer, or by the user after it.

Some sources say which items a turn names (ReDial, INSPIRED). Otherwise the catalog's titles are searched in the text
(`--truth from-next-turns`): `Title (1999)` with the catalog's year, or a title without a year if only one item has it,
its first and last word are capitalised, the next word is not, and it has several words or is set off by quotes, bold or
a line of its own. Other single words do not count, since Heat, Up and It are ordinary words too.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

from convrec.data.damage import BadRecord
from convrec.titles.forms import fold
from convrec.titles.item import NO_YEAR, Item, parse_item
from convrec.titles.matching import Matcher
from data_prep.own_data.cells import ItemReader
from data_prep.own_data.rows import Turn

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_YEAR = re.compile(r"\W{0,3}\((\d{4})\)")
_GOES_ON = re.compile(r" [A-Z\d]")  # Despicable Me 2 is not Despicable Me
_OPENING = re.compile(r"(?:^|[\"“'‘«*_]|\d[.)]|[-•])\s*$")
_CLOSING = re.compile(r"\s*(?:$|[\"”'’»*_])")


class Mentions:
    """Find the catalog's titles in text."""

    def __init__(self, reader: ItemReader) -> None:
        self.reader = reader
        self.matcher = reader.matcher
        self.rows: dict[str, list[int]] = {}
        self.longest: Counter[str] = Counter()  # first word -> number of words of the longest title that begins with it
        catalog = self.matcher.catalog
        for row, (title, year) in enumerate(zip(catalog.titles, catalog.years, strict=True)):
            if year is not None:
                for form in {_make_key(_WORD.findall(title)), fold(title)}:  # fold drops the article of `Matrix, The`
                    self.rows.setdefault(form, []).append(self.matcher.index.items[row])
                    first, *others = form.split() or [""]
                    self.longest[first] = max(self.longest[first], 1 + len(others))

    def find_in_text(self, text: str) -> list[Item]:
        rows: dict[int, None] = {}
        for line in text.splitlines():
            words = list(_WORD.finditer(line))
            start = 0
            while start < len(words):
                longest = self.longest[_make_key([words[start][0]])]
                row, length = self._find_title_at(line, words[start : start + longest])
                if row >= 0:
                    rows[row] = None
                start += length
        return list(map(self._get_item, rows))

    def parse_cell(self, cell: Any, left_out: Counter[str]) -> list[Item]:
        """Return the items that a source lists for a turn.

        An entry without a year, or with one although the catalog has none, is looked up by its title alone.

        Args:
            cell: the source's list.
            left_out: counts the entries that are not found.
        """
        items: list[Item] = []
        for entry in self.reader.split(cell):
            try:
                items += self.reader.read_items([entry])
            except BadRecord:
                item = parse_item(str(entry))
                rows = set(self.rows.get(_make_key(_WORD.findall(item.title if item else str(entry))), ()))
                items += map(self._get_item, rows if len(rows) == 1 else ())
                left_out["named items without a year or not written as in the catalog"] += len(rows) != 1
        return items

    def _find_title_at(self, line: str, words: Sequence[re.Match[str]]) -> tuple[int, int]:
        """Return the row and number of words of the longest title that begins with the first word; (-1, 1) for none."""
        for length in range(len(words), 0, -1):
            first = words[0]
            last = words[length - 1]
            rows = self.rows.get(_make_key([word[0] for word in words[:length]]))
            if not rows:
                continue
            year = _YEAR.match(line, last.end())
            if year and self.matcher.catalog.dated:
                row = self.matcher.identify(line[first.start() : last.end()], int(year[1])).index
                return row, length
            is_capital = not first[0][0].islower() and not last[0][0].islower() and not _GOES_ON.match(line, last.end())
            is_set_off = _OPENING.search(line[: first.start()]) and _CLOSING.match(line, last.end())
            if is_capital and (length > 1 or is_set_off) and len(set(rows)) == 1:
                return rows[0], length
        return -1, 1

    def _get_item(self, row: int) -> Item:
        return Item(self.matcher.catalog.titles[row], self.matcher.catalog.years[row] or NO_YEAR)


def _make_key(words: Sequence[str]) -> str:
    return " ".join(words).casefold().replace("’", "'")


def iter_rows(
    record: Mapping[str, Any], turns: Sequence[Turn], named: Sequence[Sequence[Item]], matcher: Matcher, also_user: bool
) -> Iterator[tuple[dict[str, Any], Sequence[Turn]]]:
    """Yield a record and its turns for each answer of the recommender that names new items.

    Args:
        record: the conversation's record.
        turns: all its turns.
        named: the items that each turn names.
        matcher: of the catalog.
        also_user: whether items that the user's next turns name count as ground truth too.
    """
    runs = _group_by_speaker(turns)
    for number, run in enumerate(runs):
        start = run[0]
        if turns[start].role == "user" or number == 0:
            continue
        reply = runs[number + 1] if also_user and number + 1 < len(runs) else []
        before = list(chain.from_iterable(named[:start]))
        after = [item for index in [*run, *reply] for item in named[index]]
        truth = _select_new_items(after, before, matcher)
        if truth:
            seen = [[title] for title in dict.fromkeys(item.title for item in before)]
            yield {**record, "ground_truth": list(map(_to_cell_entry, truth)), "seen": seen}, turns[:start]


def _group_by_speaker(turns: Sequence[Turn]) -> list[list[int]]:
    """Group the indices of consecutive turns of one speaker."""
    return [list(run) for _, run in groupby(range(len(turns)), key=lambda index: turns[index].role)]


def _select_new_items(after: Iterable[Item], before: Iterable[Item], matcher: Matcher) -> list[Item]:
    """Return the items of `after` that are not in `before`, each once."""
    earlier = {_identify(item, matcher) for item in before}
    items = {_identify(item, matcher): item for item in after}
    return [item for identity, item in items.items() if identity not in earlier]


def _to_cell_entry(item: Item) -> list[Any]:
    """Return [title, year], or [title] if the catalog has no years."""
    return [item.title] if item.year == NO_YEAR else [item.title, item.year]


def _identify(item: Item, matcher: Matcher) -> object:
    row, key = matcher.identify(*item)
    return row if row >= 0 else (key, item.year)
