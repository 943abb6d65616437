"""The list of English words: frequent ones, and rare ones on request."""

from convrec.titles.english import is_english


def test_only_frequent_words_count_unless_rare_ones_are_asked_for() -> None:
    assert [word for word in ("sunset", "movies", "lubber", "zorbal") if is_english(word)] == ["sunset", "movies"]
    assert is_english("lubber", rare=True)
    assert not is_english("zorbal", rare=True)
