"""Compute the forms by which titles are compared.

`normalise` is for exact matching, `fold` for fuzzy matching; `iter_readings` splits off notes, and `make_short_forms`
shortens titles with subtitles as people do.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

from convrec.base.shipped import read_table
from convrec.titles.english import is_english
from convrec.titles.marks import decode_marks

CACHE_SIZE = 1 << 18
LONGEST_NUMBER = 100  # digits; Python refuses to parse 4,300, and a model may write anything
MOST_PARTS = 5  # of a title, split at colons and dashes

_ARTICLES = ("the", "a", "an")
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th", "ß": "ss"})
# An apostrophe inside a word, or the `?` that replaces one in the Reddit data, is dropped: don't, don?t -> dont.
_APOSTROPHE = re.compile(r"(?<=\w)['’‘ʼ`´?](?=\w)")
_ACRONYM = re.compile(r"\b(?:[^\W\d_][.*]){2,}(?:[^\W\d_]\b)?")  # E.T., M*A*S*H
_AND_N = re.compile(r"(?<=\w)(?: ?['’‘`]n(?:['’‘`] ?| )| n['’‘`] ?)(?=\w)")  # Rock 'n' Roll
_TRADE_MARKS = re.compile(r"[™®℠©]|\((?:tm|r)\)(?=\W|$)", re.IGNORECASE)
# The position before a digit that NFKC would join with the preceding one, as in 8½ and Alien³.
_RAISED_DIGIT = re.compile(r"(?<=\w)(?=[²³¹⁴-⁹½⅓⅔¼¾⅛])")
_SIGNS = str.maketrans({"♥": " heart ", "❤": " heart ", "♡": " heart ", "×": "x", "✕": "x", "π": "pi", "\ufe0f": ""})
_NOT_WORD = re.compile(r"[\W_]+")
_DIGITS = re.compile(r"\d+")
# `Matrix, The`; `Godfather, The: Part II`; `Misérables, Les`
_INVERTED_ARTICLE = re.compile(r"^(.+?), (the|an?|les?|l[ao]s?|el|il|das|d[ei][er])(?= ?[:(]|$)")
_ELIDED = ("'", "’")  # L'Avventura
_TURNED_ARTICLE = re.compile(
    r"(.+?), (the|an?|les?|l[ao]s?|el|il|gli|das|d[ei][er]|l['’])((?: ?[:(].*)?)", re.IGNORECASE
)
LISTED: Mapping[str, Any] = read_table(__file__, "words.yaml")
_UNITS = LISTED["units"]
_TENS = LISTED["tens"]
_MULTIPLIERS: Mapping[str, int] = LISTED["multipliers"]
# first -> 1, st
_UNIT_ORDINALS = {word: (int(form[0]), form[1:]) for form, word in LISTED["ordinals"].items() if len(form) == 3}
NUMBER_WORDS = {**_UNITS, **LISTED["teens"], **_TENS}
_WORDS = {**LISTED["roman"], **NUMBER_WORDS, **LISTED["ordinals"], **LISTED["spellings"]}
_NUMBERED = frozenset({"part", "chapter", "episode", "volume"})  # dropped before a number: Kill Bill: Vol. 2
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
    """Return the form for exact matching.

    NFKC, case-folded, white space collapsed, HTML entities decoded and trademark signs dropped.
    """
    title = decode_marks(title)
    if not title.isascii():
        title = drop_trade_marks(title).translate(_SIGNS)
        title = unicodedata.normalize("NFKC", _RAISED_DIGIT.sub(" ", title))
    return " ".join(title.casefold().split())


def drop_trade_marks(title: str) -> str:
    """Drop trademark signs, which NFKC would turn into "tm": `Counter-Strike™`. A title of only such signs stays."""
    return _TRADE_MARKS.sub("", title).strip() or title


class Forms(NamedTuple):
    """The forms of a title for fuzzy matching.

    Attributes:
        article: the leading article, "" if there is none.
        folded: the title without it: letters, digits and single spaces only; "" for a title of symbols such as `$`.
        letters: all letters and digits, with numbers and words unchanged.
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
    """Compute the forms of a title for fuzzy matching."""
    text = normalise(title)
    if ", " in text:
        text = _INVERTED_ARTICLE.sub(r"\2 \1", text, count=1)
    if not text.isascii():
        text = "".join(ch for ch in unicodedata.normalize("NFKD", text) if not unicodedata.combining(ch))
        text = text.translate(_LETTERS)
    if not text.replace(" ", "").isalnum():  # folding signs takes half of the time
        text = _fold_signs(text)
    words = text.split()
    letters = "".join(words)
    article = words.pop(0) if len(words) > 1 and words[0] in _ARTICLES else ""
    if _WORDS.keys().isdisjoint(words) and not _DIGITS.search(text):
        return Forms(article, " ".join(words), letters)
    return Forms(article, " ".join(_fold_words(_join_numbers(words))), letters)


def _fold_signs(text: str) -> str:
    """Reduce a text to letters, digits and spaces: signs are written out or dropped."""
    if "(" in text:
        text = drop_trade_marks(text)
    if "." in text or "*" in text:
        text = _ACRONYM.sub(lambda acronym: acronym[0].replace(".", "").replace("*", ""), text)
    if "'" in text or "’" in text:
        text = _AND_N.sub(" and ", text)
    text = _APOSTROPHE.sub("", text.replace("&", " and "))
    return _NOT_WORD.sub(" ", text)


def _fold_words(words: list[str]) -> list[str]:
    """Replace words by their form in `_WORDS`, and drop `Part` before a number."""
    folded: list[str] = []
    for index, word in enumerate(words):
        form = _WORDS.get(word, word)
        if index == 0:
            # A single letter is a word at the start (`X-Men`, `I, Robot`, `V for Vendetta`), else a number (`Rocky V`).
            form = word if len(word) == 1 else form
        elif form.isdecimal() and len(folded) > 1 and folded[-1] in _NUMBERED:
            folded.pop()
        folded.append(form)
    return folded


def _join_numbers(words: list[str]) -> list[str]:
    """Write numbers as digits: `twenty thousand` and `20 000` as 20000, `nineteen eighty four` as 1984."""
    joined: list[str] = []
    index = 0
    while index < len(words):
        number = words[index]
        if number in NUMBER_WORDS:
            number, index = _read_number_words(words, index)
        elif number.isdecimal():
            number, index = _read_digits(words, index)
        else:
            index += 1
        joined.append(number)
    return joined


def _read_number_words(words: list[str], index: int) -> tuple[str, int]:
    """Return (the number that starts at a word, the index after it)."""
    thousands = 0
    rest = int(NUMBER_WORDS[words[index]])
    index += 1
    while index < len(words):
        word = words[index]
        if word in _UNIT_ORDINALS and _lacks_unit(rest):  # twenty-first is 21st
            value, ending = _UNIT_ORDINALS[word]
            return f"{thousands + rest + value}{ending}", index + 1
        if word in _MULTIPLIERS and 0 < rest < _MULTIPLIERS[word]:
            rest *= _MULTIPLIERS[word]
            if word != "hundred":
                thousands += rest
                rest = 0
        elif word in NUMBER_WORDS and _continues(rest, int(NUMBER_WORDS[word])):
            value = int(NUMBER_WORDS[word])
            is_year = rest % 100 != 0 and value >= 10  # nineteen eighty
            rest = (100 * rest if is_year else rest) + value
        elif not (word == "and" and words[index - 1] in _MULTIPLIERS and _is_number_word(words, index + 1)):
            break
        index += 1
    return str(thousands + rest), index


def _is_number_word(words: list[str], index: int) -> bool:
    return index < len(words) and words[index] in NUMBER_WORDS


def _continues(number: int, value: int) -> bool:
    """Return whether a number continues with this value: one hundred and one, eighty-four, nineteen eighty."""
    return number % 100 == 0 or (value < 10 and _lacks_unit(number)) or (13 <= number <= 20 and value >= 10)


def _lacks_unit(number: int) -> bool:
    return number % 10 == 0 and number % 100 >= 20


def _read_digits(words: list[str], index: int) -> tuple[str, int]:
    """Return (the number that starts at a word of digits, the index after it).

    `20 000` and `20 thousand` are 20000, and so is `20,000`: its comma is a space by then.
    """
    number = words[index]
    is_grouped = len(number) <= 3
    index += 1
    while is_grouped and index < len(words) and len(words[index]) == 3 and words[index].isdecimal():
        number += words[index]
        index += 1
    if index < len(words) and words[index] in _MULTIPLIERS and len(number) <= 9:
        return str(int(number) * _MULTIPLIERS[words[index]]), index + 1
    return number, index


def turn_article(title: str) -> str:
    """Move a trailing article to the front: `Matrix, The` becomes The Matrix."""
    match = _TURNED_ARTICLE.fullmatch(title)
    if not match:
        return title
    start, article, rest = match.groups()
    return f"{article}{'' if article.endswith(_ELIDED) else ' '}{start}{rest}"


def fold(title: str) -> str:
    """Return the form for fuzzy matching, without the leading article."""
    return forms(title).folded


def numbers(folded: str) -> tuple[int, ...]:
    """Return every number in a folded title, in order: the key of the sequel guard."""
    return tuple(int(digits[:LONGEST_NUMBER]) for digits in _DIGITS.findall(folded))


def strip_label(title: str) -> str | None:
    """Return the text after `1: ` or `Title: `, None without such a label.

    Try it only if the catalog lacks the title itself: 300: Rise of an Empire is one.
    """
    match = _LABEL.fullmatch(title)
    return match[1] if match else None


def iter_readings(title: str) -> Iterator[str]:
    """Yield what else `Title (note)` can mean: the title alone, and the note, which can be a second title.

    The sequel guard: the dropped part has no number, or the same ones (Dune (Part Two) is not Dune).
    """
    if match := _LAST_PARENTHESES.fullmatch(title):
        first, second = match.groups()
        first_numbers = numbers(fold(first))
        second_numbers = numbers(fold(second))
        if second_numbers in ((), first_numbers):
            yield first
        if first_numbers in ((), second_numbers):
            yield second


def split_parts(title: str) -> list[str]:
    """Split a title at colons, dashes and parentheses, in the form for exact matching."""
    return _BETWEEN_PARTS.split(normalise(title), MOST_PARTS)


def fold_parts(title: str) -> list[str]:
    """Split a title at colons, dashes and parentheses, and fold its parts; `Part` before a number is dropped."""
    texts = split_parts(title)
    if len(texts) == 1:
        return [fold(title)]
    folded = [fold(text) for text in texts]
    return [_NUMBERED_FIRST.sub("", text) for text in folded if text]


def make_short_forms(parts: list[str]) -> set[str]:
    """Return what people write for a title with several parts: some of them, or all.

    `Star Wars: Episode V - The Empire Strikes Back` is Star Wars, Star Wars 5, The Empire Strikes Back, ...; `Star Trek
    II: The Wrath of Khan` is also Star Trek: The Wrath of Khan; `Rambo: First Blood Part II` is Rambo 2. The sequel
    guard: a number above 1 at the end of a title stays (Dune: Part Two is not Dune). A single part after a colon counts
    only if it is neither a number nor an English word (War (2014) is not Justice League: War).

    Args:
        parts: from `fold_parts`.
    """
    if len(parts) < 2:
        return set()
    last = len(parts) - 1
    sequel = _SEQUEL.fullmatch(parts[last])
    is_number = [index > 0 and part.isdecimal() for index, part in enumerate(parts)]
    short_forms = {
        " ".join(parts[index] for index in indices)
        for count in range(1, last + 2)
        for indices in combinations(range(last + 1), count)
        if (indices[-1] == last or not sequel)
        # a number needs the part before it
        and all(index - 1 in indices for index in indices if is_number[index])
        and not (len(indices) == 1 and indices[0] and is_english(parts[indices[0]]))
    }
    if (head := _SEQUEL.fullmatch(parts[0])) and head[1]:
        short_forms.add(" ".join([head[1], *parts[1:]]))
    elif sequel and sequel[1]:
        short_forms.add(f"{parts[0]} {sequel[2]}")
    return short_forms
