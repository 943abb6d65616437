"""Names of items in running text: the title, and the shorter forms that people use.

`Terminator 2`, `Terminator` and `Judgment Day` all name Terminator 2: Judgment Day. The names of a title are

- the title, and a title of the catalog with which it begins: The Matrix (Reloaded);
- the part before a colon, a dash, parentheses, `Episode V`, `Part II`, a comma or `and the`: the name of the series,
  however many titles share it. The same part, or the title, without a final number also counts: Toy Story (3);
- a part after one of these separators (A New Hope), unless other series of the catalog have the same part (The
  Beginning).

Some parts name the title only if they are written like a title: capitalised within a sentence, in quotes, or alone.
These are single ordinary words (Alien: Covenant), and one or two ordinary words on either side of a comma or `and the`
unless they are the name of a series (The Old Man and the Sea).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from convrec.titles.catalog import Catalog
from convrec.titles.english import is_english
from convrec.titles.forms import NUMBER_WORDS, fold, normalise, split_parts, turn_article

SHORTEST_NAME = 3  # letters and digits of a part: `It` and `Up` are usually not meant as titles
_NUMBER = rf"(?:\d+|[ivxl]+|{'|'.join(NUMBER_WORDS)})"
_NUMBER_MARK = re.compile(rf"[,:]?\s+(?:episode|part|chapter|volume|vol\.?)\s+{_NUMBER}\b[:,]?", re.IGNORECASE)
_WEAK_BREAK = re.compile(r",? (?:and|&) (?:the|his|her) |, ", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(.+) \d+")
_POSSESSIVE = re.compile(r"['’]s\b")
_APOSTROPHE = re.compile(r"(?<=\w)['’](?=\w)")
_WORD = re.compile(r"[^\W_]+(?:['’.&-]+[^\W_]+)*")
_QUOTED = re.compile(r"[\"“*_«]+([^\"“”*_«»]+)[\"”*_»]+")
_END_OF_SENTENCE = re.compile(r"[.!?]\s+|[:;\n]")
_LONGEST_LINK = 3  # letters of a function word within a title: of, the, and
_LONGEST_SHORT_ANSWER = 2  # words: `Alien, please`


class _Name(NamedTuple):
    """A name of an item.

    Attributes:
        forms: the spellings that count as the name.
        is_ordinary: whether the name is also an ordinary word.
    """

    forms: frozenset[str]
    is_ordinary: bool


class TitleNames:
    """The names of a catalog's items."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._names: dict[int, list[_Name]] = {}
        self._titles: set[str] = set()
        self._series_of_part: defaultdict[str, set[str]] = defaultdict(set)
        self._num_titles_of_side: Counter[str] = Counter()
        for title in self.iter_titles(range(len(catalog))):
            self._titles.update(_forms(title))
            first, *others = _split(title) or [""]
            self._num_titles_of_side.update({fold(side) for side in _WEAK_BREAK.split(first)})
            for part in others:
                self._series_of_part[fold(part)].add(_strip_number(fold(first)))

    def is_named(self, text: str, rows: Sequence[int]) -> bool:
        """Return whether a text names one of these items."""
        if any(_is_title_in(title, text) for title in self.iter_titles(rows)):
            return True
        padded_texts = _pad(text) + _pad(_POSSESSIVE.sub("", text))
        padded_spans = [form for span in _iter_title_spans(text) for form in _pad(span)]
        return any(
            _contains(padded_spans if name.is_ordinary else padded_texts, name.forms)
            for row in rows
            for name in self._find_names(row)
        )

    def iter_titles(self, rows: Iterable[int]) -> Iterator[str]:
        """Yield the titles of items, and their aliases."""
        catalog = self._catalog
        for row in rows:
            yield catalog.titles[row]
            yield from catalog.aliases[row] if catalog.aliases else ()

    def _find_names(self, row: int) -> list[_Name]:
        if row not in self._names:
            names = {name for title in self.iter_titles([row]) for name in self._iter_names(title)}
            self._names[row] = sorted(names, key=lambda name: sorted(name.forms))
        return self._names[row]

    def _iter_names(self, title: str) -> Iterator[_Name]:
        parts = _split(title) or [title]
        yield from self._iter_part_names(parts)
        yield from self._iter_side_names(parts)
        yield from self._iter_beginnings(title)

    def _iter_part_names(self, parts: Sequence[str]) -> Iterator[_Name]:
        """Yield the names from a title's parts, and from several consecutive parts (Mission: Impossible)."""
        for place, part in enumerate(parts):
            if place == 0 or len(self._series_of_part[fold(part)]) < 2:
                yield from _make_names(part)
            for end in range(place + 2, len(parts) + 1):
                yield from _make_names(" ".join(parts[place:end]))

    def _iter_side_names(self, parts: Sequence[str]) -> Iterator[_Name]:
        """Yield the names on either side of `and the` within a part."""
        for part in parts:
            sides = _WEAK_BREAK.split(part)
            for side in sides if len(sides) > 1 else ():
                yield from _make_names(side, is_weak=self._num_titles_of_side[fold(side)] < 2)

    def _iter_beginnings(self, title: str) -> Iterator[_Name]:
        """Yield the titles of the catalog with which this one begins."""
        for form in _forms(title):
            words = form.split()
            for count in range(1, len(words)):
                beginning = " ".join(words[:count])
                if beginning in self._titles:
                    yield from _make_names(beginning)


def _is_title_in(title: str, text: str) -> bool:
    forms = [(form(title), form(text)) for form in (fold, normalise)]
    return any(bool(title_words) and f" {title_words} " in f" {text_words} " for title_words, text_words in forms)


def _split(title: str) -> list[str]:
    """Split a title into its parts with letters; `Episode V` and the like separate parts and are not parts."""
    marked = _NUMBER_MARK.sub(": ", turn_article(title))
    return [part for part in split_parts(marked) if any(map(str.isalpha, part))]


def _make_names(part: str, is_weak: bool = False) -> Iterator[_Name]:
    """Yield the names from a part: the part, and the part without a final number.

    Args:
        part: the part of a title.
        is_weak: whether two ordinary words are an ordinary name, as a single one is.
    """
    numbered = _forms(part)
    for forms in (numbered, [_strip_number(form) for form in numbered]):
        words = forms[0].split()
        is_ordinary = len(words) <= 1 + is_weak and all(map(is_english, words))
        long_forms = frozenset(form for form in forms if len(form) >= SHORTEST_NAME and not form.isdecimal())
        if long_forms:
            yield _Name(long_forms, is_ordinary)


def _strip_number(form: str) -> str:
    match = _LAST_NUMBER.fullmatch(form)
    return match[1] if match else form


def _forms(text: str) -> list[str]:
    """Return a text in words: as titles are compared, and without reading numerals (`X-Men` is x men, not 10 men)."""
    plain = " ".join(_WORD.findall(_APOSTROPHE.sub("", normalise(text)).replace("-", " ")))
    article, _, rest = plain.partition(" ")
    return [fold(text), rest if article in ("the", "a", "an") and rest else plain]


def _pad(text: str) -> list[str]:
    return [f" {form} " for form in _forms(text)]


def _contains(texts: Sequence[str], forms: frozenset[str]) -> bool:
    return any(f" {form} " in text for form in forms for text in texts)


def _iter_title_spans(text: str) -> Iterator[str]:
    """Yield the parts of a text that are written like titles."""
    for quoted in _QUOTED.finditer(text):
        yield quoted[1]
    for sentence in _END_OF_SENTENCE.split(text):
        words = [match[0] for match in _WORD.finditer(sentence)]
        is_short = len(words) <= _LONGEST_SHORT_ANSWER
        yield from _iter_capital_runs(words if is_short else words[1:])


def _iter_capital_runs(words: Sequence[str]) -> Iterator[str]:
    """Yield runs of capitalised words, with short words between them (Lord of the Rings)."""
    run: list[str] = []
    links: list[str] = []
    for word in words:
        if _is_capital(word):
            run += [*links, word]
            links = []
        elif run and len(word) <= _LONGEST_LINK:
            links.append(word)
        else:
            yield " ".join(run)
            run = []
            links = []
    yield " ".join(run)


def _is_capital(word: str) -> bool:
    return word[0].isupper() or word[0].isdecimal()
