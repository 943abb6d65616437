"""The matcher finds the same rows with its index as by brute force."""

import random

from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz import fuzz
from rapidfuzz.distance import OSA

from convrec.titles import blocks as title_blocks
from convrec.titles import word_guard
from convrec.titles.blocks import SAME_YEAR
from convrec.titles.catalog import Catalog
from convrec.titles.forms import fold, forms, normalise, numbers
from convrec.titles.index import SHORTEST_MISSPELT
from convrec.titles.matching import Matcher

FILMS = [
    ("The Matrix", 1999),
    ("Toy Story 2", 1999),
    ("Rocky III", 1982),
    ("Amélie", 2001),
    ("Mother!", 2017),
    ("Heat", 1995),
    ("Amelie", 2001),
    ("Mother", 2017),
    ("Mother", 2018),
]


def test_forms_of_a_title_are_computed_once() -> None:
    """The cache of `forms` is smaller than a large catalog, where a second use would be a second computation."""
    titles = [f"{first} {second}" for first in ("Red", "Blue", "Old") for second in ("River", "House", "Road", "Sea")]
    before = forms.cache_info()
    Matcher(Catalog.from_items([(title, 1990) for title in titles]))
    after = forms.cache_info()
    assert after.hits + after.misses - before.hits - before.misses == len(titles)


def has_other_word(written: str, title: str, words: set[str], years_apart: int) -> bool:
    """Apply the word guard case by case."""

    def is_word(word: str) -> bool:
        return word in word_guard.SHORT_WORDS if len(word) < 3 else word in words

    def differ_by_ending(first: str, second: str) -> bool:
        longer = [first + ending for ending in word_guard.ENDINGS if len(first) > 2]
        return second in longer or first in [second + ending for ending in word_guard.ENDINGS if len(second) > 2]

    if "".join(written.split()) == "".join(title.split()):
        return False  # only spaces differ
    stable_pair = tuple(" ".join(list_stable_words(text)) for text in (written, title))
    texts = [(written, title), stable_pair, (written, f"the {title}")]
    if 10 * (min(OSA.distance(*pair) for pair in texts) - 1) > max(len(written), len(title)) + 3 * (not years_apart):
        return True  # too many typos for the number of letters
    stable = [*list_stable_words(written), *list_stable_words(title)]
    extra = [word for word in stable if word not in title.split()]
    missing = [word for word in stable if word not in written.split()]
    if missing and not extra:
        return True  # a word is omitted
    pairs = [(first, second) for first in extra for second in missing]
    pairs.append(("".join(written.split()), "".join(title.split())))
    endings = [min(pair, key=len) for pair in pairs if differ_by_ending(*pair)]
    if years_apart:
        return bool(endings) or any(is_word(word) for word in extra)
    if not any(is_word(word) for word in extra) and not any(word in words for word in endings):
        return False
    return OSA.distance(written, title) / max(len(written), len(title)) > 1 / 20


def list_stable_words(text: str) -> list[str]:
    return [word for word in text.split() if word not in ("the", "a", "an", "and")]


def find_by_brute_force(matcher: Matcher, title: str, year: int) -> int:
    """Apply the documented rule without an index: the best catalog title that shares a first or last letter."""
    folded = fold(title)
    candidates = []
    words = {word for other in matcher.catalog.titles for word in fold(other).split()}
    for row, (other, other_year) in enumerate(zip(matcher.catalog.titles, matcher.catalog.years, strict=True)):
        target = fold(other)
        if other_year is None or abs(other_year - year) > 1 or numbers(target) != numbers(folded):
            continue
        if len(folded) < SHORTEST_MISSPELT - 1 or len(target) < SHORTEST_MISSPELT:
            continue
        apart = abs(other_year - year)
        if apart and forms(title).article != forms(other).article:
            continue
        letters = 2 if apart else 1
        if folded[:letters] != target[:letters] and folded[-letters:] != target[-letters:]:
            continue
        score = fuzz.ratio(folded, target) if apart else fuzz.ratio(folded + SAME_YEAR, target + SAME_YEAR)
        if score >= 90 and not has_other_word(folded, target, words, apart):
            candidates.append((-score, apart, row))
    return min(candidates, default=(0, 0, -1))[2]


def test_the_index_finds_the_same_row_as_brute_force():
    rng = random.Random(1)
    # No English words, because the brute force has no word list.
    words = ["".join(rng.choices("qxzvjko", k=rng.randint(3, 6))) for _ in range(60)] + ["2", "III", "and", "the", "of"]
    films = [(" ".join(rng.choices(words, k=rng.randint(1, 4))), rng.randint(1990, 1996)) for _ in range(400)]
    matcher = Matcher(Catalog.from_items(films))
    num_found = 0
    for _ in range(600):
        title, year = rng.choice(films)
        place = rng.randrange(len(title) + 1)
        title = title[:place] + rng.choice("qxzvjko ") + title[place + rng.randint(0, 1) :]
        if rng.random() < 0.2:  # replace or omit a word
            title = title.replace(rng.choice(title.split()), rng.choice([*words, ""]), 1)
        year += rng.randint(-2, 2)
        if matcher.index.find_nearest_year(matcher.index.by_title.get(normalise(title), ()), year) >= 0:
            continue
        if matcher.index.find_by_spelling(title, year) != -1:
            continue
        row = find_by_brute_force(matcher, title, year)
        assert matcher.index.find_most_similar(title, year) == row, (title, year)
        if matcher.index.find_by_letters(title, year) == -1:
            assert matcher.identify(title, year).index == (matcher.index.items[row] if row >= 0 else -1)
        num_found += row >= 0
    assert num_found > 100


def measure_largest_block(matcher: Matcher) -> int:
    return max(len(block.rows) for block in matcher.index._blocks._blocks.values() if block)


def test_large_blocks_are_split_and_one_typo_is_still_found(monkeypatch):
    """With one typo, one end of a title is spelled right, however small the blocks are."""
    rng = random.Random(2)
    titles = sorted({"".join(rng.choices("abcd", k=rng.randint(10, 16))) for _ in range(300)})
    catalog = Catalog.from_items([(title, 2001) for title in titles])
    whole = Matcher(catalog)
    monkeypatch.setattr(title_blocks, "LARGE_BLOCK", 8)
    split = Matcher(catalog)
    assert measure_largest_block(split) <= 8 < measure_largest_block(whole)
    for title in titles:
        place = rng.randrange(len(title))
        written = title[:place] + "e" + title[place + 1 :]
        assert split.identify(written, 2001) == whole.identify(written, 2001)
        assert split.identify(written, 2001).index >= 0


def test_titles_with_equal_ends_are_still_compared_in_the_middle(monkeypatch):
    monkeypatch.setattr(title_blocks, "LARGE_BLOCK", 8)
    titles = [f"abcdefg{letter}{letter}mnopqrs" for letter in "tuvwxyzhij"]
    matcher = Matcher(Catalog.from_items([(title, 2001) for title in titles]))
    assert [matcher.identify(title[:8] + "0" + title[9:], 2001).index for title in titles] == [-1] * 10  # a number
    assert [matcher.identify(title[:8] + "k" + title[9:], 2001).index for title in titles] == [*range(10)]


def find_items_pairwise(films: list, ids: list) -> list[int]:
    """Return, for each row, the first row of the same item, by comparing all pairs."""

    def are_same(first: int, second: int) -> bool:
        if ids[first] is not None or ids[second] is not None:
            return ids[first] == ids[second]
        first_title, first_year = films[first]
        second_title, second_year = films[second]
        return first_year == second_year and (forms(first_title).spelling or first_title) == (
            forms(second_title).spelling or second_title
        )

    return [next(other for other in range(row + 1) if are_same(other, row)) for row in range(len(films))]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Fall", "The Fall", "fall!", "Amélie", "Amelie", "$", "?"]),
            st.sampled_from([2001, 2002]),
            st.sampled_from([None, None, 1, 2]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_rows_share_an_item_by_id_or_by_folded_title_and_year(rows):
    films = [row[:2] for row in rows]
    ids = [row[2] for row in rows]
    index = Matcher(Catalog.from_items(films, item_ids=ids)).index
    assert index.items == find_items_pairwise(films, ids)
    for first, members in index.rows.items():
        assert members == [row for row, item in enumerate(index.items) if item == first]
    keys = {item: index.keys[item] for item in index.items}
    with_ids = [item for item in keys if ids[item] is not None]
    assert len({keys[item] for item in with_ids}) == len(with_ids)
