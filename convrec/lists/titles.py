"""A title's forms, by which titles are compared: `normalise` for exact matching, `fold` for fuzzy, other `readings`,
and the `short_forms` that people write of a title with a subtitle."""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

from convrec.lists.english import is_english
from convrec.shipped import read_table

CACHE_SIZE = 1 << 18
LONGEST_NUMBER = 100  # digits; Python refuses to read 4,300, and a model may write anything
MOST_PARTS = 5  # of a title, at its colons and dashes

_ARTICLES = ("the", "a", "an")
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th", "ß": "ss"})
# An apostrophe inside a word, or the `?` that stands for one in the Reddit data, joins: don't, don?t -> dont.
_APOSTROPHE = re.compile(r"(?<=\w)['’‘ʼ`´?](?=\w)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
_NOT_WORD = re.compile(r"[\W_]+")
_DIGITS = re.compile(r"\d+")
# `Matrix, The`; `Godfather, The: Part II`; `Misérables, Les`
_INVERTED_ARTICLE = re.compile(r"^(.+?), (the|an?|les?|l[ao]s?|el|il|das|d[ei][er])(?= ?[:(]|$)")
LISTED: Mapping[str, Any] = read_table(__file__, "words.yaml")
_UNITS, _TENS = LISTED["units"], LISTED["tens"]
NUMBER_WORDS = {**_UNITS, **LISTED["teens"], **_TENS}
_WORDS = {**LISTED["roman"], **NUMBER_WORDS, **LISTED["ordinals"], **LISTED["spellings"]}
_NUMBERED = frozenset({"part", "chapter", "episode", "volume"})  # before a number they say nothing: Kill Bill: Vol. 2
_NUMBERED_FIRST = re.compile(rf"^(?:{'|'.join(sorted(_NUMBERED))}) (?=\d)")
_SEQUEL = re.compile(r"(?:(.+) )?(?!1$)(\d+)")

# `1: Heat`, `Title: Heat`, `**Movie:** Heat`, `Rank 1: Heat`
_LABEL = re.compile(
    r"(?:\d{1,2}|(?:title|name|movie|film|item|rank|number|recommendation|pick|choice|option)(?: ?#?\d{1,3})?)"
    r":[*_]{0,2} ?(\S.*)",
    re.IGNORECASE,
)
_LAST_PARENTHESES = re.compile(r"(.*\S) ?[(（]([^()（）]+)[)）]")
_BETWEEN_PARTS = re.compile(r"(?<!\d):(?=\S)|: |; | [-–—~|/] |[–—]|,? or[:,] |, or | or (?=[(（])|[()（）]")


def normalise(title: str) -> str:
    """Exact mode's form: NFKC, case-folded, white space collapsed."""
    if not title.isascii():
        title = unicodedata.normalize("NFKC", title)
    return " ".join(title.casefold().split())


class Forms(NamedTuple):
    """article: the leading one, empty for none. folded: fuzzy mode's form, without it: letters, digits and single
    spaces only; empty for a title of symbols such as `$`. letters: all letters and digits, no number or word changed.
    """

    article: str
    folded: str
    letters: str

    @property
    def spelling(self) -> str:
        """The folded title with its article."""
        return f"{self.article} {self.folded}" if self.article else self.folded


@lru_cache(maxsize=CACHE_SIZE)
def forms(title: str) -> Forms:
    text = normalise(title)
    if ", " in text:
        text = _INVERTED_ARTICLE.sub(r"\2 \1", text, count=1)
    if not text.isascii():
        text = "".join(ch for ch in unicodedata.normalize("NFKD", text) if not unicodedata.combining(ch))
        text = text.translate(_LETTERS)
    if not text.replace(" ", "").isalnum():  # what follows is half of the time
        text = _THOUSANDS.sub("", _APOSTROPHE.sub("", text.replace("&", " and ")))
        text = _NOT_WORD.sub(" ", text)
    words = text.split()
    letters = "".join(words)
    article = words.pop(0) if len(words) > 1 and words[0] in _ARTICLES else ""
    if _WORDS.keys().isdisjoint(words) and not _DIGITS.search(text):
        return Forms(article, " ".join(words), letters)
    folded: list[str] = []
    for index, word in enumerate(words):
        form = _WORDS.get(word, word)
        if index == 0:
            # A single first letter is a word: `X-Men`, `I, Robot`, `V for Vendetta`; elsewhere a number: `Rocky V`.
            form = word if len(word) == 1 else form
        elif form.isdecimal():
            if len(folded) > 1 and folded[-1] in _NUMBERED:
                folded.pop()
            elif words[index - 1] in _TENS and word in _UNITS:  # twenty-one
                form = str(int(folded.pop()) + int(form))
        folded.append(form)
    return Forms(article, " ".join(folded), letters)


def fold(title: str) -> str:
    """Fuzzy mode's form, without the leading article."""
    return forms(title).folded


def numbers(folded: str) -> tuple[int, ...]:
    """The sequel guard's key: every number of a folded title, in order."""
    return tuple(int(digits[:LONGEST_NUMBER]) for digits in _DIGITS.findall(folded))


def without_label(title: str) -> str | None:
    """What follows `1: ` or `Title: `, where no title of the catalog has it: 300: Rise of an Empire is one."""
    match = _LABEL.fullmatch(title)
    return match[1] if match else None


def readings(title: str) -> Iterator[str]:
    """What else `Title (note)` can say: the title alone, and what stands in parentheses, which can be a second title.

    The sequel guard: what is left out has no number, or the same ones (Dune (Part Two) is not Dune).
    """
    if match := _LAST_PARENTHESES.fullmatch(title):
        first, second = match.groups()
        first_numbers, second_numbers = numbers(fold(first)), numbers(fold(second))
        if second_numbers in ((), first_numbers):
            yield first
        if first_numbers in ((), second_numbers):
            yield second


def parts_of(title: str) -> list[str]:
    """The parts of a title, at a colon, a dash or parentheses, folded; `Part` before a number is left out."""
    texts = _BETWEEN_PARTS.split(normalise(title), MOST_PARTS)
    if len(texts) == 1:
        return [fold(title)]
    return [_NUMBERED_FIRST.sub("", folded) for text in texts if (folded := fold(text))]


def short_forms(parts: list[str]) -> set[str]:
    """What people write of a title that has parts: some of them, or all.

    `Star Wars: Episode V - The Empire Strikes Back` is Star Wars, Star Wars 5, The Empire Strikes Back, ...; `Star Trek
    II: The Wrath of Khan` is Star Trek: The Wrath of Khan, too, `Rambo: First Blood Part II` is Rambo 2. The sequel
    guard: a number from 2 on at the end of a title stays (Dune: Part Two is not Dune). What stands alone behind a colon
    is no number and no English word (War (2014) is not Justice League: War).
    """
    if len(parts) < 2:
        return set()
    last = len(parts) - 1
    sequel = _SEQUEL.fullmatch(parts[last])
    is_number = [index > 0 and part.isdecimal() for index, part in enumerate(parts)]
    found = {
        " ".join(parts[index] for index in kept)
        for count in range(1, last + 2)
        for kept in combinations(range(last + 1), count)
        if (kept[-1] == last or not sequel)
        # a number goes with what is before it
        and all(index - 1 in kept for index in kept if is_number[index])
        and not (len(kept) == 1 and kept[0] and is_english(parts[kept[0]]))
    }
    if (head := _SEQUEL.fullmatch(parts[0])) and head[1]:
        found.add(" ".join([head[1], *parts[1:]]))
    elif sequel and sequel[1]:
        found.add(f"{parts[0]} {sequel[2]}")
    return found
