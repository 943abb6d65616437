"""Which words are English, beyond those that a catalog's titles have: a real other word is no typo."""

import gzip
import json
from functools import cache
from importlib.resources import files

# Of their count in the list's source, subtitles. Rarer ones are met as typos rather than as words (lubber, winy): with
# all 160,000 a title with one typo is found less often (notes/data.md).
FREQUENT = 500


def is_english(word: str, rare: bool = False) -> bool:
    """Whether the word, in lower case and inflected or not, is one of the 25,000 most frequent; rare: of any."""
    return _counts().get(word, 0) >= (1 if rare else FREQUENT)


@cache
def _counts() -> dict[str, int]:
    """Of pyspellchecker's list, which has no misspellings; read when it is first needed, without its own checker."""
    return json.loads(gzip.decompress((files("spellchecker") / "resources" / "en.json.gz").read_bytes()))
