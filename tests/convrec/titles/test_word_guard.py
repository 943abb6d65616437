"""The word guard on pairs of folded titles as the index compares them: similar, with the same numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.titles.word_guard import LETTERS_PER_TYPO, WordGuard

CATALOG_WORDS = {"sunrise", "shawshank", "redemption", "zorbal", "zor", "zo"}
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
        ("t shirt black xl", "t shirt black", True),
        ("blue cotton t shirt black xl", "blue cotton t shirt black", True),
        ("t shirt black q", "t shirt black", True),
        ("a us", "us", False),  # an article is no typo
        ("blue cotton t shirt black qz", "blue cotton t shirt black", False),  # neither a size nor a word
        ("what i saw last summer night", "what a saw last summer night", False),  # letters that are words
        ("zors redemption", "zor redemption", True),  # an ending of a name
        ("zos redemption", "zo redemption", False),  # which needs three letters
        ("zerbals redemption", "zorbal redemption", False),
        ("lubber redemption", "rubber redemption", False),  # a rare word is a typo,
        ("lubber", "rubber", True),  # but not if it is the title
        ("silence of the lamb", "silence of the lambs", False),  # 20 letters
        ("silence of lamb", "silence of lambs", True),  # in 16 letters, one typo makes another word
        ("silence of all the little lamb", "silence of all the little lambs", False),  # in 31 it is a typo
    ],
)
def test_the_guard_tells_another_word_from_a_typo(written: str, title: str, is_other: bool) -> None:
    assert GUARD.has_other_word(written, title, years_differ=False) == is_other


@pytest.mark.parametrize(("num_typos", "num_letters"), [(2, 10), (3, 20)])
@pytest.mark.parametrize("years_differ", [True, False])
def test_typos_need_ten_letters_each_but_the_first(num_typos: int, num_letters: int, years_differ: bool) -> None:
    # an equal year counts as three letters
    written = "qorkalbimu" * 2
    title = "qxrxaxbimu"[: 2 * num_typos] + written[2 * num_typos :]
    enough = num_letters - (0 if years_differ else 3)
    assert not GUARD.has_other_word(written[:enough], title[:enough], years_differ)
    assert GUARD.has_other_word(written[: enough - 1], title[: enough - 1], years_differ)


def test_short_words_are_those_of_a_list() -> None:
    assert [word for word in ("an", "qi", "zo", "cat", "zor", "qiw") if GUARD.is_word(word)] == ["an", "cat", "zor"]


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
