"""Recognize English words, in addition to those in a catalog's titles: another real word is not a typo."""

import gzip
import json
from functools import cache
from importlib.resources import files

# Minimum count in the list's source, subtitles. Rarer words occur as typos rather than as words (lubber, winy): with
# all 160,000 words, titles with one typo are found less often (notes/data.md).
FREQUENT = 500


def is_english(word: str, rare: bool = False) -> bool:
    """Return whether a word is English.

    Args:
        word: in lower case, possibly inflected.
        rare: whether all 160,000 words of the list count, or only the 25,000 most frequent.
    """
    return _counts().get(word, 0) >= (1 if rare else FREQUENT)


@cache
def _counts() -> dict[str, int]:
    """Read pyspellchecker's list, which has no misspellings, at the first use, without its spell checker."""
    return json.loads(gzip.decompress((files("spellchecker") / "resources" / "en.json.gz").read_bytes()))
