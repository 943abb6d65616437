"""Guards against titles that are similar and yet another item's: by a word, by a size, by too many typos.

`title_index` says what each guard refuses. The sequel guard and the one for articles stand in the index itself.
"""

from collections.abc import Set
from itertools import product

from rapidfuzz.distance import OSA

from convrec.titles.blocks import SAME_YEAR
from convrec.titles.english import is_english
from convrec.titles.forms import LISTED

# Letters of a title per typo that changes one real word into another, where the years agree.
LETTERS_PER_TYPO = 20

# Articles and `and` come and go.
UNSTABLE_WORDS = frozenset({"the", "a", "an", "and"})
# Words of one or two letters. Others of that length are typos, though titles have them.
SHORT_WORDS = frozenset(
    "a i am an as at be by do go he hi if in is it me my no of oh on or so to up us we".split()  # noqa: SIM905
)
# What makes another word of a word.
ENDINGS = frozenset("s es d ed r er rs ers st est ing ly y n en".split())  # noqa: SIM905
# Single letters that are words, and no size or key.
LETTER_WORDS = frozenset({"a", "i"})
# Of clothes and batteries: one size is not another.
SIZES = frozenset(LISTED["sizes"])
ORDINALS = frozenset(LISTED["ordinals"].values())


class WordGuard:
    """Tells a typo from another word.

    Args:
        catalog_words: every word of the catalog's folded titles.
        fuzzy_cutoff: the least similarity of two titles, up to 100.
    """

    def __init__(self, catalog_words: Set[str], fuzzy_cutoff: float):
        self.catalog_words = catalog_words
        self.fuzzy_cutoff = fuzzy_cutoff

    def has_other_word(self, written: str, title: str, years_differ: bool) -> bool:
        """Whether two similar folded titles are two items'.

        Args:
            written: as a model or a person wrote it.
            title: of the catalog.
            years_differ: whether the years are next to each other, not the same.
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
        # the titles without spaces, too: in `Chain Saws`, Chainsaw has got an ending
        pairs = [pair for pair in (joined_pair, *product(extra, missing)) if _differ_by_ending(*pair)]
        if years_differ:
            # a typo in the title and one in the year are unlikely: what may be another word is one
            return bool(pairs) or any(map(self.is_word, extra))
        is_single = " " not in written  # a title of one word is nearer to others
        is_other = any(self.is_word(word, rare=is_single) for word in extra) or any(
            self._is_name(min(pair, key=len)) for pair in pairs
        )
        return is_other and LETTERS_PER_TYPO * OSA.distance(written, title) > max(len(written), len(title))

    def is_word(self, word: str, rare: bool = False) -> bool:
        """Whether a word is a real one: English, or in a title of the catalog.

        Args:
            word: folded.
            rare: whether rare English words count, too.
        """
        if len(word) < 3:
            return word in SHORT_WORDS
        return word in self.catalog_words or word in ORDINALS or is_english(word, rare)

    def _is_name(self, word: str) -> bool:
        """Whether a word of the catalog is in no word list, so that none knows its endings."""
        return word in self.catalog_words and not is_english(word)

    def _has_more_typos(self, written: str, title: str, years_differ: bool) -> bool:
        """Whether there are more typos than the similarity shows.

        It counts a letter too many as half of a wrong one: one more is a typo, not three (Animatrix). Two need ten
        letters, in the same year seven (Sandow is not Shadow).
        """
        typos = OSA.distance(written, title)
        if typos > 1:
            # articles and `and` are none, nor is a space behind `The` that became a letter
            without_unstable = OSA.distance(_drop_unstable(written), _drop_unstable(title))
            typos = min(typos, without_unstable, OSA.distance(written, f"the {title}"))
        letters = max(len(written), len(title)) + (0 if years_differ else len(SAME_YEAR) // 3)
        return 100 * (typos - 1) > (100 - self.fuzzy_cutoff) * letters


def _drop_unstable(folded: str) -> str:
    return " ".join(word for word in folded.split() if word not in UNSTABLE_WORDS)


def _differ_by_size(written: str, title: str) -> bool:
    """The size guard: `T-Shirt, black, S` is not M, nor one of no size; a Mass in B Minor is none in C Minor."""
    ours = written.split()
    theirs = title.split()
    extra = set(ours).difference(theirs)
    missing = set(theirs).difference(ours)
    if len(extra) == len(missing) == 1:
        (one,) = extra
        (other,) = missing
        is_lettered = len(one) == len(other) == 1 and (ours[-1] != theirs[-1] or {one, other}.isdisjoint(LETTER_WORDS))
        return is_lettered or {one, other} <= SIZES
    return ours[:-1] == theirs and (ours[-1] in SIZES or len(ours[-1]) == 1)


def _differ_by_ending(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    return len(short) > 2 and long.startswith(short) and long[len(short) :] in ENDINGS
