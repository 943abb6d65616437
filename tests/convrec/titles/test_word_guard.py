"""The word guard on pairs of folded titles as the index compares them: similar, with the same numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.titles.word_guard import LETTERS_PER_TYPO, WordGuard

CATALOG_WORDS = {"sunrise", "shawshank", "redemption", "zorbal"}
GUARD = WordGuard(CATALOG_WORDS, fuzzy_cutoff=90)


@pytest.mark.parametrize(
    ("written", "title", "is_other"),
    [
        ("shawshenk redemption", "shawshank redemption", False),  # not a word: a typo
        ("before sunset", "before sunrise", True),  # English
        ("zorbal redemption", "zorba redemption", True),  # a word of another title
        ("chain saw", "chainsaw", False),  # a space
        ("live free or", "live free or die", True),  # a word is omitted
        ("room and view", "room view", False),  # `and` may be omitted
        ("t shirt black s", "t shirt black m", True),  # a size
        ("mass in b minor", "mass in c minor", True),  # a key
        ("silence of lamb", "silence of lambs", True),  # in 16 letters, one typo makes another word
        ("silence of all the little lamb", "silence of all the little lambs", False),  # in 31 it is a typo
    ],
)
def test_the_guard_tells_another_word_from_a_typo(written: str, title: str, is_other: bool) -> None:
    assert GUARD.has_other_word(written, title, years_differ=False) == is_other


def test_possible_other_word_counts_as_other_if_years_differ() -> None:
    written, title = "silence of all the little lamb", "silence of all the little lambs"
    assert GUARD.has_other_word(written, title, years_differ=True)
    assert len(title) > LETTERS_PER_TYPO


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=7), min_size=1, max_size=4), st.booleans(), st.data())
def test_spaces_do_not_make_another_title(words: list[str], years_differ: bool, data: st.DataObject) -> None:
    title = " ".join(words)
    joined = "".join(words)
    cut = data.draw(st.integers(0, len(joined)))
    written = f"{joined[:cut]} {joined[cut:]}".strip()
    assert not GUARD.has_other_word(written, title, years_differ)
