"""Tell similar titles of different items apart: by a word, by a size, by too many typos.

convrec.titles.index describes each guard, and contains the guards for sequels and articles.
"""

from collections.abc import Set
from itertools import product

from rapidfuzz.distance import OSA

from convrec.titles.blocks import SAME_YEAR
from convrec.titles.english import is_english
from convrec.titles.forms import LISTED

# Letters of a title per accepted typo that changes one real word into another, if the years agree.
LETTERS_PER_TYPO = 20

# Words that may be omitted or added.
UNSTABLE_WORDS = frozenset({"the", "a", "an", "and"})
# All words of one or two letters. Others of that length count as typos, even if titles have them.
SHORT_WORDS = frozenset(
    "a i am an as at be by do go he hi if in is it me my no of oh on or so to up us we".split()  # noqa: SIM905
)
# Endings that make another word.
ENDINGS = frozenset("s es d ed r er rs ers st est ing ly y n en".split())  # noqa: SIM905
# Single letters that are words, not sizes or musical keys.
LETTER_WORDS = frozenset({"a", "i"})
# Sizes of clothes and batteries.
SIZES = frozenset(LISTED["sizes"])
ORDINALS = frozenset(LISTED["ordinals"].values())


class WordGuard:
    """Tells a typo from another word.

    Args:
        catalog_words: every word of the catalog's folded titles.
        fuzzy_cutoff: the minimum similarity of two titles, up to 100.
    """

    def __init__(self, catalog_words: Set[str], fuzzy_cutoff: float):
        self.catalog_words = catalog_words
        self.fuzzy_cutoff = fuzzy_cutoff

    def has_other_word(self, written: str, title: str, years_differ: bool) -> bool:
        """Return whether two similar folded titles belong to different items.

        Args:
            written: the title as a model or a person wrote it.
            title: a title in the catalog.
            years_differ: whether the years are adjacent rather than equal.
        """
        joined_pair = (written.replace(" ", ""), title.replace(" ", ""))
        if joined_pair[0] == joined_pair[1]:
            return False
        if _differ_by_size(written, title) or self._has_more_typos(written, title, years_differ):
            return True
        written_words = set(written.split())
        title_words = set(title.split())
        extra = written_words - title_words - UNSTABLE_WORDS
        missing = title_words - written_words - UNSTABLE_WORDS
        if not extra:
            return bool(missing)
        # The titles without spaces count too: `Chain Saws` is Chainsaw with an ending.
        pairs = [pair for pair in (joined_pair, *product(extra, missing)) if _differ_by_ending(*pair)]
        if years_differ:
            # Typos in both title and year are unlikely, so any possible other word counts as one.
            return bool(pairs) or any(map(self.is_word, extra))
        is_single = " " not in written  # single-word titles resemble each other more
        is_other = any(self.is_word(word, rare=is_single) for word in extra) or any(
            self._is_name(min(pair, key=len)) for pair in pairs
        )
        return is_other and LETTERS_PER_TYPO * OSA.distance(written, title) > max(len(written), len(title))

    def is_word(self, word: str, rare: bool = False) -> bool:
        """Return whether a word is real: English, or in a title of the catalog.

        Args:
            word: folded.
            rare: whether rare English words count too.
        """
        if len(word) < 3:
            return word in SHORT_WORDS
        return word in self.catalog_words or word in ORDINALS or is_english(word, rare)

    def _is_name(self, word: str) -> bool:
        """Return whether a word of the catalog is in no word list, so that its endings are unknown."""
        return word in self.catalog_words and not is_english(word)

    def _has_more_typos(self, written: str, title: str, years_differ: bool) -> bool:
        """Return whether there are more typos than the similarity shows.

        Similarity counts an inserted letter as half a wrong one, but only one of them is a typo, not three (Animatrix).
        Two typos need ten letters, in the same year seven (Sandow is not Shadow).
        """
        typos = OSA.distance(written, title)
        if typos > 1:
            # Articles and `and` are not typos, nor is a letter instead of the space after `The`.
            stable_typos = OSA.distance(_drop_unstable(written), _drop_unstable(title))
            typos = min(typos, stable_typos, OSA.distance(written, f"the {title}"))
        letters = max(len(written), len(title)) + (0 if years_differ else len(SAME_YEAR) // 3)
        return 100 * (typos - 1) > (100 - self.fuzzy_cutoff) * letters


def _drop_unstable(folded: str) -> str:
    return " ".join(word for word in folded.split() if word not in UNSTABLE_WORDS)


def _differ_by_size(written: str, title: str) -> bool:
    """Apply the size guard: `T-Shirt, black, S` is neither M nor without a size; B Minor is not C Minor."""
    words = written.split()
    title_words = title.split()
    extra = set(words).difference(title_words)
    missing = set(title_words).difference(words)
    if len(extra) == len(missing) == 1:
        pair = extra | missing
        has_letters = all(len(word) == 1 for word in pair)
        is_lettered = has_letters and (words[-1] != title_words[-1] or pair.isdisjoint(LETTER_WORDS))
        return is_lettered or pair <= SIZES
    return words[:-1] == title_words and (words[-1] in SIZES or len(words[-1]) == 1)


def _differ_by_ending(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    return len(short) > 2 and long.startswith(short) and long[len(short) :] in ENDINGS
