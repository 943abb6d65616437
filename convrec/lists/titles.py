"""A title's forms, by which titles are compared: `normalise` for exact matching, `fold` for fuzzy, other `readings`."""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

CACHE_SIZE = 1 << 18
LONGEST_NUMBER = 100  # digits; Python refuses to read 4,300, and a model may write anything

_ARTICLES = ("the", "a", "an")
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th", "ß": "ss"})
# An apostrophe inside a word, or the `?` that stands for one in the Reddit data, joins: don't, don?t -> dont.
_APOSTROPHE = re.compile(r"(?<=\w)['’‘ʼ`´?](?=\w)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
_NOT_WORD = re.compile(r"[\W_]+")
_DIGITS = re.compile(r"\d+")
_INVERTED_ARTICLE = re.compile(r"(.+), (the|a|an)")
_ONES = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix")
_ROMAN = {tens + ones: str(10 * t + o) for t, tens in enumerate(("", "x")) for o, ones in enumerate(_ONES) if t or o}
_UNITS = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"),
    *("fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# `v` is read as a number, so `vs` is too: Ford v Ferrari is Ford vs. Ferrari.
_WORDS = {
    **{word: str(value) for value, word in enumerate(_UNITS, start=1)},
    **{word: str(10 * value) for value, word in enumerate(_TENS, start=2)},
    **{"vs": "5", "versus": "5"},
    **{"dr": "doctor", "mr": "mister", "pt": "part", "st": "saint", "vol": "volume"},
}

_COLON_NUMBER = re.compile(r"\d{1,2}: (.+)")
_LAST_PARENTHESES = re.compile(r"(.*\S) ?[(（]([^()（）]+)[)）]")


def normalise(title: str) -> str:
    """Exact mode's form: NFKC, case-folded, white space collapsed."""
    if not title.isascii():
        title = unicodedata.normalize("NFKC", title)
    return " ".join(title.casefold().split())


@lru_cache(maxsize=CACHE_SIZE)
def fold(title: str) -> str:
    """Fuzzy mode's form: letters, digits and single spaces only; empty for a title of symbols such as `$`."""
    text = normalise(title)
    if inverted := _INVERTED_ARTICLE.fullmatch(text):  # "Matrix, The"
        text = inverted[1]
    text = "".join(ch for ch in unicodedata.normalize("NFKD", text) if not unicodedata.combining(ch))
    text = text.translate(_LETTERS).replace("&", " and ")
    words = _NOT_WORD.sub(" ", _THOUSANDS.sub("", _APOSTROPHE.sub("", text))).split()
    if len(words) > 1 and words[0] in _ARTICLES:
        del words[0]
    # A single first letter is a word: `X-Men`, `I, Robot`, `V for Vendetta`; anywhere else it is a number: `Rocky V`.
    return " ".join(
        _WORDS.get(word) or (_ROMAN.get(word, word) if index or len(word) > 1 else word)
        for index, word in enumerate(words)
    )


def numbers(folded: str) -> tuple[int, ...]:
    """The sequel guard's key: every number of a folded title, in order."""
    return tuple(int(digits[:LONGEST_NUMBER]) for digits in _DIGITS.findall(folded))


def without_number(title: str) -> str | None:
    """What follows `1: `, for titles that are not in the catalog with it: 300: Rise of an Empire is a title."""
    match = _COLON_NUMBER.fullmatch(title)
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
