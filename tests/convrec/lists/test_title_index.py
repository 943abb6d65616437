"""What the matcher finds with its index, and folds with its shortcuts, is what it would find without them."""

import random
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz import fuzz

from convrec.lists import matching, title_index, titles
from convrec.lists.catalog import Catalog
from convrec.lists.matching import Matcher
from convrec.lists.ranks import parse_item
from convrec.lists.title_index import SAME_YEAR, SHORTEST_MISSPELT
from convrec.lists.titles import fold, normalise, numbers

FILMS = [
    ("The Matrix", 1999),
    ("Toy Story 2", 1999),
    ("Rocky III", 1982),
    ("Amélie", 2001),
    ("Mother!", 2017),
    ("Heat", 1995),
]


def fold_step_by_step(title: str) -> str:
    """`fold` with every step taken, needed or not."""
    text = " ".join(unicodedata.normalize("NFKC", title).casefold().split())
    if inverted := titles._INVERTED_ARTICLE.fullmatch(text):
        text = inverted[1]
    text = "".join(ch for ch in unicodedata.normalize("NFKD", text) if not unicodedata.combining(ch))
    text = text.translate(titles._LETTERS).replace("&", " and ")
    text = titles._THOUSANDS.sub("", titles._APOSTROPHE.sub("", text))
    words = titles._NOT_WORD.sub(" ", text).split()
    if len(words) > 1 and words[0] in titles._ARTICLES:
        del words[0]
    for place, word in enumerate(words):
        roman = titles._ROMAN.get(word, word) if place or len(word) > 1 else word
        words[place] = titles._WORDS.get(word, roman)
    return " ".join(words)


title_like = st.text(alphabet="The aXVIo,'&-0129éøß²Ⅳ（：?$. ", max_size=16) | st.text(max_size=16)


@given(title_like | st.builds("{}, {}".format, title_like, st.sampled_from(["The", "A", "an"])))
def test_the_shortcuts_of_folding_change_nothing(title):
    assert fold(title) == fold_step_by_step(title)


def brute_force(matcher: Matcher, title: str, year: int) -> int:
    """The documented rule with no index: the best of all catalog titles that share a first or last letter."""
    folded, candidates = fold(title), []
    for row, (other, other_year) in enumerate(zip(matcher.catalog.titles, matcher.catalog.years, strict=True)):
        target = fold(other)
        if other_year is None or abs(other_year - year) > 2 or numbers(target) != numbers(folded):
            continue
        if min(len(folded), len(target)) < SHORTEST_MISSPELT:
            continue
        apart = abs(other_year - year)
        letters = 2 if apart else 1
        if folded[:letters] != target[:letters] and folded[-letters:] != target[-letters:]:
            continue
        if apart:
            score = fuzz.ratio(folded + "#" * (apart - 1), target)
        else:
            score = fuzz.ratio(folded + SAME_YEAR, target + SAME_YEAR)
        if score >= 90:
            candidates.append((-score, apart, row))
    return min(candidates, default=(0, 0, -1))[2]


def test_the_index_finds_what_comparing_with_every_title_finds():
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdeo", k=rng.randint(3, 6))) for _ in range(60)] + ["2", "III"]
    films = [(" ".join(rng.choices(words, k=rng.randint(1, 4))), rng.randint(1990, 1996)) for _ in range(400)]
    matcher = Matcher(Catalog.from_items(films))
    found = 0
    for _ in range(600):
        title, year = rng.choice(films)
        place = rng.randrange(len(title))
        title = title[:place] + rng.choice("abcdeo ") + title[place + rng.randint(0, 1) :]
        year += rng.randint(-2, 2)
        if matcher.index.nearest(matcher.index.by_title.get(normalise(title), ()), year) >= 0:
            continue
        if matcher.index.nearest(matcher.index.by_folded.get(fold(title), ()), year) >= 0:
            continue
        assert matcher.identify(title, year).index == brute_force(matcher, title, year), (title, year)
        found += matcher.identify(title, year).index >= 0
    assert found > 100


def test_large_blocks_are_split_and_one_typo_is_still_found(monkeypatch):
    """Titles of one year that begin and end alike: however small a block may be, one end is spelt right."""
    rng = random.Random(2)
    titles = sorted({"".join(rng.choices("abcd", k=rng.randint(10, 16))) for _ in range(300)})
    catalog = Catalog.from_items([(title, 2001) for title in titles])
    whole = Matcher(catalog)
    monkeypatch.setattr(title_index, "LARGE_BLOCK", 8)
    split = Matcher(catalog)
    largest = max(len(block[0]) for block in split.index._blocks.values() if block)
    assert largest <= 8 < max(len(block[0]) for block in whole.index._blocks.values() if block)
    for title in titles:
        place = rng.randrange(len(title))
        written = title[:place] + "e" + title[place + 1 :]
        assert split.identify(written, 2001) == whole.identify(written, 2001)
        assert split.identify(written, 2001).index >= 0


def test_having_met_the_catalog_changes_nothing():
    catalog = Catalog.from_items(FILMS)
    met, fresh = Matcher(catalog).warm(), Matcher(catalog)
    assert met.identify.cache_info().currsize == len(FILMS)
    lines = [(title + mark, year + shift) for title, year in FILMS for mark in ("", "s") for shift in (0, 1, 5)]
    assert [met.identify(*line) for line in lines] == [fresh.identify(*line) for line in lines]


def match_rank_by_rank(matcher: Matcher, items, ground_truth, seen) -> list[tuple]:
    """`Matcher.match` as its docstring says it: (relevance, in catalog, duplicate, seen, row, parsed) of each rank."""
    truth = [(matcher.identify(title, year).key, year) for title, year in ground_truth]
    seen_keys = {matcher._seen_key(title) for title in seen}
    earlier, ranks = set(), []
    for item in items:
        if item is None:
            ranks.append((0, False, False, False, -1, False))
            continue
        row, key = matcher.identify(*item)
        identity = row if row >= 0 else (key, item.year)
        is_seen = key in seen_keys or matching.FOLDED + fold(key) in seen_keys
        hit = int(row >= 0 and not is_seen and identity not in earlier and matcher._take_nearest(truth, key, item.year))
        ranks.append((hit, row >= 0, identity in earlier, is_seen, row, True))
        earlier.add(identity)
    return ranks


written = st.sampled_from(
    [f"{title} ({year + shift})" for title, year in [*FILMS, ("Nope", 2000), ("$", 1971)] for shift in (-1, 0, 2)]
    + [
        "the matrix (1999)",
        "Matrix (1999)",
        "Maetrix, The (1999)",
        "mother (2017)",
        "no item",
        "** (1999)",
        "Heat(1995)",
    ]
)
named = st.sampled_from(["Heat", "heat (1995)", "matrix", "Mother", "$", "", "Nope", "Rocky 3", "?"])


@given(
    st.lists(written, max_size=8),
    st.lists(st.sampled_from([*FILMS, ("The Matrix", 2000), ("Nope", 2000)]), max_size=4),
    st.lists(named, max_size=2),
    st.sampled_from([*matching.MATCHERS]),
)
def test_looking_at_all_ranks_at_once_is_looking_at_each(lines, truth, seen, mode):
    matcher = Matcher(Catalog.from_items(FILMS), mode)
    items = [parse_item(line) for line in lines]
    result = matcher.match(items, truth, seen)
    assert matcher.match_lines(lines, truth, seen) == result
    if mode != "reference":  # whose rule is another
        assert list(zip(*result, strict=True)) == match_rank_by_rank(matcher, items, truth, seen)
