import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.lists.catalog import Catalog, load_catalog
from convrec.lists.matching import Matcher
from convrec.lists.metrics import evaluate_row
from convrec.lists.ranks import NO_YEAR, Item, parse_items
from convrec.lists.reference import parse_items_reference
from convrec.lists.titles import fold, normalise, numbers
from data_prep.sample_data.films import load_films

FILMS = [
    ("The Matrix", 1999),
    ("Moulin Rouge!", 2001),
    ("Toy Story", 1995),
    ("Toy Story 2", 1999),
    ("Toy Story 3", 2010),
    ("Rocky", 1976),
    ("Rocky II", 1979),
    ("Rocky III", 1982),
    ("Harry Potter and the Deathly Hallows: Part 1", 2010),
    ("Harry Potter and the Deathly Hallows: Part 2", 2011),
    ("Amélie", 2001),
    ("Pride & Prejudice", 2005),
    ("But I'm a Cheerleader", 1999),
    ("20,000 Leagues Under the Sea", 1954),
    ("Mother!", 2017),
    ("Mother", 2017),
    ("Mother", 2009),
    ("The Outsiders", 1983),
    ("The Stranger", 2020),
    ("The Stranger", 2022),
    ("Heat", 1995),
    ("$", 1971),
    ("The Wall", 201),
]
ROW = {film: row for row, film in reversed(list(enumerate(FILMS)))}


@pytest.fixture(scope="module")
def fuzzy():
    return Matcher(Catalog.from_items(FILMS), "fuzzy")


@pytest.fixture(scope="module")
def exact():
    return Matcher(Catalog.from_items(FILMS), "exact")


@pytest.mark.parametrize(
    ("title", "year", "film"),
    [
        ("the  MATRIX", 1999, ("The Matrix", 1999)),
        ("The Matrix", 2001, ("The Matrix", 1999)),  # the tolerance is 2
        ("The Matrix", 2002, None),
        ("Ｈeat", 1995, ("Heat", 1995)),  # NFKC: full-width H
        ("Matrix", 1999, None),
        ("Moulin Rouge", 2001, None),
        ("The Stranger", 2021, ("The Stranger", 2020)),  # both one year off: the catalog's order
        ("The Stranger", 2023, ("The Stranger", 2022)),  # the nearest year
        ("$", 1971, ("$", 1971)),
        ("The Wall", 201, None),  # a broken year was reported at load and never matches
    ],
)
def test_exact_matching(exact, title, year, film):
    assert exact.identify(title, year).index == (ROW[film] if film else -1)


@pytest.mark.parametrize(
    ("title", "year", "film"),
    [
        ("Matrix", 1999, ("The Matrix", 1999)),
        ("Matrix, The", 1999, ("The Matrix", 1999)),
        ("Moulin Rouge", 2001, ("Moulin Rouge!", 2001)),
        ("Mother", 2017, ("Mother!", 2017)),  # one item: the first row stands for both
        ("Mother!", 2017, ("Mother!", 2017)),
        ("Mother", 2009, ("Mother", 2009)),
        ("Amelie", 2001, ("Amélie", 2001)),
        ("Pride and Prejudice", 2005, ("Pride & Prejudice", 2005)),
        ("But I?m a Cheerleader", 1999, ("But I'm a Cheerleader", 1999)),
        ("But I’m a Cheerleader", 1999, ("But I'm a Cheerleader", 1999)),
        ("20000 Leagues under the Sea", 1954, ("20,000 Leagues Under the Sea", 1954)),
        ("The Matirx", 1999, ("The Matrix", 1999)),
        ("Pride & Predjudice", 2006, ("Pride & Prejudice", 2005)),
        ("Rocky 2", 1979, ("Rocky II", 1979)),
        ("Toy Story Two", 1999, ("Toy Story 2", 1999)),
        ("Harry Potter and the Deathly Hallows Part II", 2011, ("Harry Potter and the Deathly Hallows: Part 2", 2011)),
        # not the same
        ("Toy Story 2", 2010, None),
        ("Toy Story 4", 2010, None),
        ("Rocky II", 1982, None),
        ("Rocky", 1979, None),
        ("Rocky IV", 1982, None),
        ("Heat 2", 1995, None),
        ("The Outsider", 1981, None),  # two years and a letter apart
        ("Her", 1995, None),  # too short to be misspelt
        ("€", 1971, None),  # symbols have no folded form
    ],
)
def test_fuzzy_matching(fuzzy, title, year, film):
    assert fuzzy.identify(title, year).index == (ROW[film] if film else -1)


WORDS = [
    ("Heat", 1995),
    ("Untamed Heart", 1993),
    ("Before Sunrise", 1995),
    ("Before Sunset", 2004),
    ("Alien", 1979),
    ("Aliens", 1986),
    ("Avatar", 2009),
    ("The Aviator", 2004),
    ("The Silence of the Lambs", 1991),
    ("Lamb", 2021),
    ("Live Free or Die Hard", 2007),
    ("The Texas Chain Saw Massacre", 1974),
    ("Chainsaw", 2004),
    ("Prime", 2005),
    ("Romeo & Juliet", 1968),
    ("Rome", 2005),
    ("Sister", 2012),
]


@pytest.mark.parametrize(
    ("title", "year", "film"),
    [
        # a real other word is no typo
        ("Heart", 1995, None),
        ("Before Sunset", 1995, None),
        ("Alien", 1986, None),
        ("Avatar", 2004, None),
        ("Sunrise", 1995, None),
        ("Primer", 2005, None),  # not in the catalog, and an ending tells it from a word that is
        ("Sisters", 2012, None),
        ("Live Free or Die", 2007, None),  # a word is left out
        # what is no word is one, and so is a letter in twenty
        ("Haet", 1995, ("Heat", 1995)),
        ("Before Sunrize", 1995, ("Before Sunrise", 1995)),
        ("Alienz", 1986, ("Aliens", 1986)),
        ("The Aviater", 2004, ("The Aviator", 2004)),
        ("The Silence of the Lamb", 1991, ("The Silence of the Lambs", 1991)),
        # spaces, articles and `and` make no other title
        ("The Texas Chainsaw Massacre", 1974, ("The Texas Chain Saw Massacre", 1974)),
        ("The Silence of Lambs", 1991, ("The Silence of the Lambs", 1991)),
        ("Romeo + Juliet", 1968, ("Romeo & Juliet", 1968)),
    ],
)
def test_word_guard(title, year, film):
    row = Matcher(Catalog.from_items(WORDS)).identify(title, year).index
    assert row == (WORDS.index(film) if film else -1)


def test_the_next_similar_title_is_taken_where_the_most_similar_has_another_word():
    # `zampers` is nearer to Zamper, from which an ending tells it, than to Zompers.
    assert Matcher(Catalog.from_items([("Zamper", 2001), ("Zompers", 2001)])).identify("Zampers", 2001).index == 1


SECOND_TITLES = [
    ("Heat", 1995),
    ("Spirited Away", 2001),
    ("Dune", 2021),
    ("Twilight", 2008),
    ("Ocean's Thirteen", 2007),
    ("12 Monkeys", 1995),
    ("Ford v Ferrari", 2019),
    ("Kill Bill: Vol. 2", 2004),
    ("300", 2006),
    ("300: Rise of an Empire", 2014),
    ("Rise of an Empire", 2014),
    ("Dr. Strangelove", 1964),
]


@pytest.mark.parametrize(
    ("line", "film"),
    [
        ("Heat (Director's Cut) (1995)", ("Heat", 1995)),
        ("Spirited Away (Sen to Chihiro no Kamikakushi) (2001)", ("Spirited Away", 2001)),
        ("Sen to Chihiro no Kamikakushi (Spirited Away) (2001)", ("Spirited Away", 2001)),
        ("千と千尋の神隠し（spirited away） (2001)", ("Spirited Away", 2001)),
        ("L'Armée (12 Monkeys) (1995)", ("12 Monkeys", 1995)),
        ("1: Heat (1995)", ("Heat", 1995)),
        ("20: Heat (Director's Cut) [1995]", ("Heat", 1995)),
        ("300: Rise of an Empire (2014)", ("300: Rise of an Empire", 2014)),
        ("30: Rise of an Empire (2014)", ("Rise of an Empire", 2014)),
        ("Title: Heat (1995)", ("Heat", 1995)),
        ("**Movie 3:** Heat (1995)", ("Heat", 1995)),
        ("Rank 12: 300: Rise of an Empire (2014)", ("300: Rise of an Empire", 2014)),
        ("Ocean's 13 (2007)", ("Ocean's Thirteen", 2007)),
        ("Twelve Monkeys (1995)", ("12 Monkeys", 1995)),
        ("Ford vs. Ferrari (2019)", ("Ford v Ferrari", 2019)),
        ("Kill Bill: Volume II (2004)", ("Kill Bill: Vol. 2", 2004)),
        ("Doctor Strangelove (1964)", ("Dr. Strangelove", 1964)),
        ("300 (Extended) (2006)", ("300", 2006)),
        # the sequel guard, and no year of tolerance: a note can name another film
        ("Dune (Part Two) (2021)", None),
        ("Dune 2 (Dune) (2021)", None),
        ("Heat (Director's Cut) (1996)", None),
        ("Twilight (New Moon) (2009)", None),
    ],
)
def test_notes_second_titles_and_numbers_are_read_where_the_catalog_has_no_such_title(line, film):
    row = Matcher(Catalog.from_items(SECOND_TITLES)).match_lines([line], [], []).catalog_index[0]
    assert row == (SECOND_TITLES.index(film) if film else -1)


def test_a_title_with_parentheses_comes_before_what_it_can_say_without_them():
    films = [("Birdman", 2014), ("Birdman (The Unexpected Virtue of Ignorance)", 2014)]
    matcher = Matcher(Catalog.from_items(films))
    assert [matcher.identify(*film).index for film in films] == [0, 1]
    undated = Matcher(Catalog.from_items([("Kettle", None), ("Kettle (red)", None)]))
    assert undated.identify("Kettle (blue)", NO_YEAR).index == -1  # no year that agrees
    assert undated.identify("1: Kettle (red)", NO_YEAR).index == 1


def test_sequel_guard_holds_where_only_the_number_differs(fuzzy):
    # 1 of 41 letters differs and the years are one apart: far above the cutoff but for the guard.
    title = "Harry Potter and the Deathly Hallows: Part 1"
    assert fuzzy.identify(title, 2011).index == ROW[(title, 2010)]
    assert fuzzy.identify(title.replace("Part", "Prat"), 2011).index == ROW[(title, 2010)]


@pytest.mark.parametrize(
    ("title", "folded", "number"),
    [
        ("The X-Men", "x men", ()),
        ("I, Robot", "i robot", ()),
        ("V for Vendetta", "v for vendetta", ()),
        ("Rocky V", "rocky 5", (5,)),
        ("Star Trek III: The Search for Spock", "star trek 3 the search for spock", (3,)),
        ("Dune: Part Two", "dune 2", (2,)),
        ("Ocean's Thirteen", "oceans 13", (13,)),
        ("Fifty Shades of Grey", "50 shades of gray", (50,)),
        ("Freddy vs. Jason", "freddy 5 jason", (5,)),
        ("Nymphomaniac: Vol. II", "nymphomaniac 2", (2,)),
        ("Chapter 27", "chapter 27", (27,)),
        ("Twenty-One Grams", "21 grams", (21,)),
        ("Friday the Thirteenth", "friday the thirteenth", ()),
        ("Friday the 13th", "friday the thirteenth", ()),
        ("Se7en", "7", (7,)),
        ("Léon: The Professional", "leon the professional", ()),
        ("Rock ‘n’ Roll", "rock n roll", ()),
        ("Smørrebrød", "smorrebrod", ()),
        ("A", "a", ()),
        ("$", "", ()),
        ("千と千尋の神隠し", "千と千尋の神隠し", ()),
    ],
)
def test_folding(title, folded, number):
    assert (fold(title), numbers(fold(title))) == (folded, number)


@given(st.text(max_size=30))
def test_folding_is_idempotent_up_to_case_and_keeps_no_punctuation(title):
    folded = fold(title)
    assert all(ch.isalnum() or ch == " " or not ch.isprintable() or ord(ch) > 127 for ch in folded)
    assert fold(normalise(title)) == folded


def relevance(matcher, text, ground_truth, seen=()):
    return matcher.match(parse_items(text), ground_truth, seen).relevance


def test_a_hit_needs_catalog_unseen_unrepeated_and_ground_truth(fuzzy):
    text = "Heat (1995)\nno item\nThe Matrix (1999)\nMatrix (1999)\nUp (2009)\nRocky (1976)"
    truth = [("The Matrix", "1999"), ("Up", "2009"), ("Rocky", "1976")]
    result = fuzzy.match(parse_items(text), truth, ["Rocky"])
    #                    miss  none  hit  repeat out-of-catalog seen
    assert result.relevance == [0, 0, 1, 0, 0, 0]
    assert result.in_catalog == [True, False, True, True, False, True]
    assert result.duplicate == [False, False, False, True, False, False]
    assert result.seen == [False, False, False, False, False, True]
    assert result.catalog_index == [ROW[FILMS[20]], -1, 0, 0, -1, ROW[("Rocky", 1976)]]


def test_a_misspelt_item_hits_its_ground_truth_in_fuzzy_mode_only(fuzzy, exact):
    assert relevance(fuzzy, "The Matirx (1999)", [("The Matrix", "1999")]) == [1]
    assert relevance(exact, "The Matirx (1999)", [("The Matrix", "1999")]) == [0]


def test_ground_truth_spelt_unlike_the_catalog_is_still_the_same_item(fuzzy):
    assert relevance(fuzzy, "Moulin Rouge! (2001)", [("Moulin Rouge", 2001)]) == [1]


# Two spellings of a film, a title with two films, two titles that fold alike of two years.
RESPELT = [
    ("Amelie", 2001),
    ("Amélie", 2001),
    ("Fall", 2022),
    ("The Fall", 2006),
    ("Mother!", 2017),
    ("Mother", 2017),
    ("Mother", 2018),
    ("Ben Hur", 1959),
    ("Ben-Hur", 1959),
]


def test_two_spellings_of_one_title_and_year_are_one_item_wherever_items_are_compared():
    matcher = Matcher(Catalog.from_items(RESPELT))
    assert matcher.identify("Amélie", 2001) == matcher.identify("Amelie", 2001) == (0, "amelie")
    assert matcher.identify("Ben‐Hur", 1960) == (7, "ben hur")
    text = "Amélie (2001)\nAmelie (2001)\nBen Hur (1959)"
    result = matcher.match(parse_items(text), [("Amelie", "2001"), ("Ben-Hur", "1959")], [])
    assert (result.relevance, result.duplicate) == ([1, 0, 1], [False, True, False])
    for protocol in ("strict", "paper"):
        found = evaluate_row(parse_items(text), [("Amelie", 2001), ("Ben-Hur", 1959)], [], matcher, protocol, ks=[3])
        assert (found["recall@3"], found["catalog_rows"]) == (1, [0, 0, 7])
    seen = matcher.match(parse_items("Amelie (2001)\nAmélie (2001)"), [], ["Amélie"]).seen
    assert (seen, matcher.seen_rows(["Amélie"])) == ([True, True], [0, 1])


def test_titles_that_fold_alike_of_different_years_stay_two_items():
    matcher = Matcher(Catalog.from_items(RESPELT))
    assert relevance(matcher, "The Fall (2006)", [("Fall", 2022)]) == [0]
    assert relevance(matcher, "Fall (2022)", [("The Fall", 2022)]) == [1]  # no other film is of that year
    # Who has seen Mother! has seen Mother (2017), which is the same, and not Mother (2018).
    items = [Item("Mother!", 2017), Item("Mother", 2017), Item("Mother", 2018)]
    assert matcher.match(items, [], ["Mother!"]).seen == [True, True, False]
    assert matcher.seen_rows(["Mother!"]) == [4, 5]


def test_exact_and_reference_matching_know_one_spelling():
    for mode in ("exact", "reference"):
        matcher = Matcher(Catalog.from_items(RESPELT), mode)
        assert matcher.identify("Amélie", 2001).index == 1
        assert relevance(matcher, "Amélie (2001)", [("Amelie", 2001)]) == [0]
    undated = Matcher(Catalog.from_items([(title, None) for title, _ in RESPELT[:2]]))  # no year that agrees
    assert undated.identify("Amélie", NO_YEAR).index == 1


@pytest.mark.parametrize("mode", ["fuzzy", "exact"])
def test_ids_of_the_catalog_decide_what_is_one_item(mode):
    films = [("Fall", 2022), ("The Fall", 2022), ("Heat", 1995), ("Heat", 1996), ("Live Die Repeat", 2014)]
    films.append(("Edge of Tomorrow", 2014))
    matcher = Matcher(Catalog.from_items(films, item_ids=["a", "b", "c", "d", "e", "e"]), mode)
    assert relevance(matcher, "The Fall (2022)", [("Fall", 2022)]) == [0]
    assert relevance(matcher, "Heat (1996)", [("Heat", 1995)]) == [0]  # without ids a year off is a hit
    assert relevance(matcher, "Edge of Tomorrow (2014)", [("Live Die Repeat", 2014)]) == [1]
    assert matcher.seen_rows(["Edge of Tomorrow"]) == [4, 5]
    assert matcher.match([Item("Fall", 2022), Item("The Fall", 2022)], [], ["The Fall"]).seen == [False, True]


def test_a_film_that_is_wanted_twice_is_one():
    films = [("Se7en", 1995), ("Heat", 1995)]
    pairs = [("Seven", 1995), ("Se7en", "1996"), ("Heat", 1995), ("Nowhere", 1999), ("nowhere", "1999")]
    items = [Item("Seven", 1995), Item("Heat", 1995), Item("Se7en", 1995)]
    for mode, wanted in (("fuzzy", 3), ("exact", 4), ("reference", 5)):
        assert len(Matcher(Catalog.from_items(films), mode).truths(pairs)) == wanted
    matcher = Matcher(Catalog.from_items(films))
    assert matcher.match(items, pairs, []).relevance == [1, 1, 0]
    for protocol in ("strict", "paper"):
        found = evaluate_row(items, pairs, [], matcher, protocol, ks=[3])
        assert (found["num_truth"], found["recall@3"]) == (3, pytest.approx(2 / 3))


def test_each_ground_truth_is_hit_once_and_the_nearest_year_is_taken(exact):
    # 2020 takes 2021 (1 off) rather than 2022; 2022 then takes 2022.
    truth = [("The Stranger", 2022), ("The Stranger", 2021)]
    assert relevance(exact, "The Stranger (2020)\nThe Stranger (2022)", truth) == [1, 1]
    assert relevance(exact, "The Stranger (2020)\nThe Stranger (2022)", truth[:1]) == [1, 0]


def test_year_tolerance_is_between_item_and_ground_truth(exact):
    # Both are within 2 of the catalog's 1999, but 3 apart.
    assert relevance(exact, "The Matrix (1998)", [("The Matrix", 2001)]) == [0]
    assert relevance(exact, "The Matrix (1998)", [("The Matrix", 2000)]) == [1]


@pytest.mark.parametrize("year", ["n/a", None, "", "19x5"])
def test_ground_truth_without_a_year_is_the_only_item_of_that_name_and_never_fails(fuzzy, exact, year):
    for title in ("Heat", "heat", "The Outsiders"):
        assert relevance(fuzzy, "Heat (1996)\nThe Outsiders (1983)", [(title, year)]).count(1) == 1
    # two films, another article, another number, a typo; and exact matching wants the year
    for title in ("The Stranger", "Mother", "Outsiders", "Toy Story 4", "Haet"):
        text = "The Stranger (2020)\nMother (2009)\nThe Outsiders (1983)\nToy Story 3 (2010)\nHeat (1995)"
        assert relevance(fuzzy, text, [(title, year)]) == [0] * 5
    assert relevance(exact, "Heat (1995)", [("Heat", year)]) == [0]


def test_seen_titles_have_no_year_and_any_case(fuzzy, exact):
    for matcher in (fuzzy, exact):
        for seen in ("heat", "Heat (1995)"):
            assert matcher.match([Item("Heat", 1995)], [], [seen]).seen == [True]
        assert matcher.match([Item("Heat", 1995)], [], None).seen == [False]
    assert fuzzy.match([Item("The Matrix", 1999)], [], ["matrix"]).seen == [True]
    # The catalog has Mother! and Mother, two titles to exact matching.
    assert exact.match([Item("Mother", 2017), Item("Mother!", 2017)], [], ["Mother!"]).seen == [False, True]


def test_out_of_catalog_repeats_are_duplicates_too(exact):
    assert exact.match(parse_items("Up (2009)\nup (2009)\nUp (2010)"), [], []).duplicate == [False, True, False]


def test_reference_mode_wants_the_very_title_and_year():
    matcher = Matcher(Catalog.from_items(FILMS), "reference")
    truth = [("the matrix", "1999")]
    assert relevance(matcher, "The Matrix (1999)", truth) == [1]  # ground truth is case-folded, the catalog is not
    assert relevance(matcher, "the matrix (1999)", truth) == [0]
    assert relevance(matcher, "The Matrix (2000)", truth) == [0]
    assert relevance(matcher, "The Matrix (1999)", truth, ["the matrix"]) == [1]  # seen is compared letter by letter
    assert relevance(matcher, "The Matrix (1999)", truth, ["The Matrix"]) == [0]
    assert relevance(matcher, "The Matrix (1999)", [("The Matrix", "1999.0")]) == [0]
    # A repeat counts while ground truth is left: 1999 first, then one year later, one year earlier is left over.
    truth = [("The Matrix", 1998), ("The Matrix", 2000), ("The Matrix", 1999)]
    assert relevance(matcher, "The Matrix (1999)\n" * 2, truth) == [1, 1]


@pytest.mark.parametrize("bad", [{"mode": "loose"}, {"year_tolerance": -1}, {"fuzzy_cutoff": 0}, {"fuzzy_cutoff": 101}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=str(next(iter(bad.values())))):
        Matcher(Catalog.from_items(FILMS), **bad)


def test_threads_share_a_matcher(fuzzy):
    items = [Item(f"The Matrix{letter}", 1999) for letter in "abcdefgh"] * 20
    expected, results = fuzzy.match(items, [("The Matrix", 1999)], []), []
    threads = [
        threading.Thread(target=lambda: results.append(fuzzy.match(items, [("The Matrix", 1999)], [])))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 8


films = st.sampled_from(FILMS)
written = st.lists(
    st.one_of(st.none(), st.builds(lambda film, shift: Item(film[0], film[1] + shift), films, st.integers(-3, 3))),
    max_size=25,
)


@given(written, st.lists(films, max_size=6), st.lists(films.map(lambda film: film[0]), max_size=3), st.sampled_from(
    ["fuzzy", "exact", "reference"]
))  # fmt: skip
def test_hits_are_in_the_catalog_unseen_and_no_more_than_the_ground_truth(items, truth, seen, mode):
    result = MATCHERS[mode].match(items, truth, seen)
    assert all(len(column) == len(items) for column in result)
    assert sum(result.relevance) <= len(truth)
    for rank, hit in enumerate(result.relevance):
        assert not hit or (result.in_catalog[rank] and not result.seen[rank])
        assert not (hit and result.duplicate[rank]) or mode == "reference"
        assert result.in_catalog[rank] == (result.catalog_index[rank] >= 0)


MATCHERS = {mode: Matcher(Catalog.from_items(FILMS), mode) for mode in ("fuzzy", "exact", "reference")}

# What fuzzy matching alone knows better.
FUZZILY_BETTER = {
    "gt year unparsable is dropped": ([1, 0, 0, 0, 0], "the catalog has one film of that name"),
    "punctuation-different fails": ([1, 0, 0, 0, 0], "Moulin Rouge! and Moulin Rouge of one year are one film"),
}
# Where relevance differs from the reference's recorded rewards (exp_inf), and why. All other cases must agree.
BETTER = {
    'gt year "1995.0" is dropped': ([1, 0, 0, 0, 0], "1995.0 is a year"),
    "case-different rec fails catalog": ([1, 0, 0, 0, 0], "titles are case-folded"),
    "seen is case-sensitive and year-blind": ([0, 0, 0, 0, 0], "a seen title is seen in any case, with a year or not"),
    "+1 preferred over -1": ([1, 0, 0, 0, 0], "the item has appeared at an earlier rank"),
    "unparsable middle line is dropped (shifts later rewards up)": (
        [0, 0, 1, 0, 0],
        "rank k is the k-th line: the reward stays on the tokens that earned it",
    ),
    "seen None": ([1, 0, 0, 0, 0], "no seen titles is no error"),
}


@pytest.mark.parametrize("mode", ["exact", "fuzzy", "reference"])
def test_recorded_rewards_agree_but_where_we_do_better(golden, mode):
    from convrec.lists.rank_rewards import rank_returns

    recorded = golden("parse_match_cases")
    catalog = Catalog.from_items(map(tuple, recorded["catalog"]))
    better = BETTER | (FUZZILY_BETTER if mode == "fuzzy" else {})
    differing = set()
    for case in recorded["reward_cases"]:
        parse = parse_items_reference if mode == "reference" else parse_items
        matcher = Matcher(catalog, mode, **case["kwargs"])
        items = parse(case["completion"])[: case["rec_num"]]
        rel = matcher.match(items, case["groundtruth_with_release_year"], case["seen_titles"]).relevance
        returns = rank_returns(rel, case["rec_num"])
        if returns != case["output"].get("exp_inf"):
            differing.add(case["name"])
            assert returns == better[case["name"]][0], better[case["name"]][1]
        else:
            assert rank_returns(rel, case["rec_num"], "log_decay") == pytest.approx(case["output"]["log_decay"])
    # The reference raises a TypeError where there are no seen titles; that much we do not reproduce.
    assert differing == ({"seen None"} if mode == "reference" else set(better))


@pytest.fixture(params=["sample", "released"])
def two_catalogs(request):
    """A catalog, another one, and the share of misspelt titles that must be found."""
    if request.param == "sample":
        films = [(film.title, film.year) for film in load_films().films]
        return Catalog.from_items(films[::2]), Catalog.from_items(films[1::2]), 0.8
    data = request.getfixturevalue("shared_dir") / "data"
    return load_catalog(data / "reddit_v2_catalog.parquet"), load_catalog(data / "redial" / "catalog.parquet"), 0.85


def test_misspelt_titles_are_found_and_foreign_ones_are_not(two_catalogs):
    catalog, other, least = two_catalogs
    matcher, rng = Matcher(catalog), random.Random(3407)
    dated = [item for item in zip(catalog.titles, catalog.years, strict=True) if item[1]]
    found = []
    for typos in (1, 2) * 300:
        title, year = rng.choice([item for item in dated if len(item[0]) > 1])
        text = title
        for _ in range(typos):
            place, letter = rng.randrange(len(text)), rng.choice("abcdefghijklmnopqrstuvwxyz")
            text = text[:place] + letter + text[place + rng.randint(0, 1) :]
        row = matcher.identify(text, year).index
        found.append(row >= 0 and fold(catalog.titles[row]) == fold(title))
    assert sum(found) / len(found) >= least

    known = {fold(title) for title in catalog.titles}
    foreign = [i for i in zip(other.titles, other.years, strict=True) if i[1] and fold(i[0]) not in known]
    matched = [item for item in foreign if matcher.identify_line(*item).index >= 0]
    assert len(matched) / len(foreign) < 0.01
