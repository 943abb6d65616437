"""What was wanted, of the turns that follow: the items that the recommender names next, or the user after that.

A source says what its turns name (ReDial, INSPIRED), or the titles of the catalog are looked for in the text
(`--truth from-next-turns`): `Title (1999)` with the year of the catalog; without a year, or where items have none, a
title that one item alone has, if first and last word have a capital, what follows has none, and there are several words
or quotes, bold or a line around it. Other single words are no titles: Heat, Up and It are words, too.
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
    """The catalog's titles in a text."""

    def __init__(self, reader: ItemReader) -> None:
        self.reader = reader
        self.matcher = reader.matcher
        self.rows: dict[str, list[int]] = {}
        self.longest: Counter[str] = Counter()  # first word -> most words of a title that begins with it
        catalog = self.matcher.catalog
        for row, (title, year) in enumerate(zip(catalog.titles, catalog.years, strict=True)):
            if year is not None:
                for form in {_key(_WORD.findall(title)), fold(title)}:  # folded: without the article of `Matrix, The`
                    self.rows.setdefault(form, []).append(self.matcher.index.items[row])
                    first, *others = form.split() or [""]
                    self.longest[first] = max(self.longest[first], 1 + len(others))

    def find_in_text(self, text: str) -> list[Item]:
        found: dict[int, None] = {}
        for line in text.splitlines():
            words = list(_WORD.finditer(line))
            start = 0
            while start < len(words):
                longest = self.longest[_key([words[start][0]])]
                row, length = self._title_at(line, words[start : start + longest])
                if row >= 0:
                    found[row] = None
                start += length
        return list(map(self._item, found))

    def parse_cell(self, cell: Any, not_taken: Counter[str]) -> list[Item]:
        """What a source says that a turn names; by its title alone what lacks a year, or has one where the catalog has
        none. What is not found is counted."""
        items: list[Item] = []
        for entry in self.reader.split(cell):
            try:
                items += self.reader.items([entry])
            except BadRecord:
                item = parse_item(str(entry))
                rows = set(self.rows.get(_key(_WORD.findall(item.title if item else str(entry))), ()))
                items += map(self._item, rows if len(rows) == 1 else ())
                not_taken["named items without a year, or not in the catalog's form"] += len(rows) != 1
        return items

    def _title_at(self, line: str, words: Sequence[re.Match[str]]) -> tuple[int, int]:
        """(row of the longest title that begins with the first of these words, its words); (-1, 1) for none."""
        for length in range(len(words), 0, -1):
            first = words[0]
            last = words[length - 1]
            rows = self.rows.get(_key([word[0] for word in words[:length]]))
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

    def _item(self, row: int) -> Item:
        return Item(self.matcher.catalog.titles[row], self.matcher.catalog.years[row] or NO_YEAR)


def _key(words: Sequence[str]) -> str:
    return " ".join(words).casefold().replace("’", "'")


def iter_rows(
    record: Mapping[str, Any], turns: Sequence[Turn], named: Sequence[Sequence[Item]], matcher: Matcher, also_user: bool
) -> Iterator[tuple[dict[str, Any], Sequence[Turn]]]:
    """A record, and its turns, for every answer of the recommender that names items that nobody named before.

    named: the items of each turn. also_user: what the user's next turns name was wanted, too.
    """
    runs = _group_by_speaker(turns)
    for number, run in enumerate(runs):
        start = run[0]
        if turns[start].role == "user" or number == 0:
            continue
        reply = runs[number + 1] if also_user and number + 1 < len(runs) else []
        before = list(chain.from_iterable(named[:start]))
        after = [item for index in [*run, *reply] for item in named[index]]
        truth = _find_new_items(after, before, matcher)
        if truth:
            seen = [[title] for title in dict.fromkeys(item.title for item in before)]
            yield {**record, "ground_truth": list(map(_cell_entry, truth)), "seen": seen}, turns[:start]


def _group_by_speaker(turns: Sequence[Turn]) -> list[list[int]]:
    """The indices of turns, those of one speaker in a row together."""
    return [list(run) for _, run in groupby(range(len(turns)), key=lambda index: turns[index].role)]


def _find_new_items(after: Iterable[Item], before: Iterable[Item], matcher: Matcher) -> list[Item]:
    """The items named in `after`, each once, that are none of `before`."""
    earlier = {_identity(item, matcher) for item in before}
    items = {_identity(item, matcher): item for item in after}
    return [item for identity, item in items.items() if identity not in earlier]


def _cell_entry(item: Item) -> list[Any]:
    """[title, year], or [title] in a catalog without years."""
    return [item.title] if item.year == NO_YEAR else [item.title, item.year]


def _identity(item: Item, matcher: Matcher) -> object:
    row, key = matcher.identify(*item)
    return row if row >= 0 else (key, item.year)
