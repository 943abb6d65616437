"""The relevance of a list: hits, seen items, repeats, two spellings of one item."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.lists.metrics import evaluate_row
from convrec.lists.ranks import parse_items
from convrec.lists.reference import parse_items_reference
from convrec.titles.catalog import Catalog
from convrec.titles.item import NO_YEAR, Item
from convrec.titles.matching import Matcher
from tests.convrec.titles.matching_films import FILMS, ROW


def compute_relevance(matcher, text, ground_truth, seen=()):
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


def test_misspelt_item_hits_ground_truth_only_in_fuzzy_mode(fuzzy, exact):
    assert compute_relevance(fuzzy, "The Matirx (1999)", [("The Matrix", "1999")]) == [1]
    assert compute_relevance(exact, "The Matirx (1999)", [("The Matrix", "1999")]) == [0]


def test_ground_truth_with_another_spelling_matches(fuzzy):
    assert compute_relevance(fuzzy, "Moulin Rouge! (2001)", [("Moulin Rouge", 2001)]) == [1]


# Two spellings of a film, a title of two films, two titles with the same folded form in different years.
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


def test_rows_without_an_id_match_by_title_as_in_a_catalog_without_ids():
    films = [("Heat", 1995), ("Heat", 1996), ("Up", 2009)]
    for ids in (None, [None, None, "tt1"]):
        matcher = Matcher(Catalog.from_items(films, item_ids=ids))
        assert compute_relevance(matcher, "Heat (1995)", [("Heat", 1996)]) == [1]
    with_ids = Matcher(Catalog.from_items(films, item_ids=["a", "b", "c"]))
    assert compute_relevance(with_ids, "Heat (1995)", [("Heat", 1996)]) == [0]


def test_reference_mode_knows_no_aliases():
    catalog = Catalog.from_items([("Spirited Away", 2001)], aliases=[["Sen to Chihiro"]])
    found = [Matcher(catalog, mode).identify("Sen to Chihiro", 2001).index for mode in ("reference", "exact", "fuzzy")]
    assert found == [-1, 0, 0]


def test_the_first_row_is_found_by_another_spelling_before_its_folded_form():
    """Folded, both are `mother`, of which neither is the only one."""
    matcher = Matcher(Catalog.from_items([("Mother!", 2017), ("The Mother", 2017)]))
    assert [matcher.index.find_by_spelling(title, 2017) for title in ("Mother?", "The Mother?")] == [0, 1]


@pytest.mark.parametrize(
    ("title", "other"),
    [
        ("S.W.A.T.", "SWAT"),
        ("M*A*S*H", "MASH"),
        ("10,000 BC", "10000 BC"),
        ("1.000 Times Good Night", "1000 times good night"),
    ],
)
def test_acronyms_and_thousands_are_one_item_however_spelled(title, other):
    assert Matcher(Catalog.from_items([(title, 2003), (other, 2003)])).index.items == [0, 0]


def test_two_spellings_of_one_title_and_year_are_one_item():
    matcher = Matcher(Catalog.from_items(RESPELT))
    assert matcher.identify("Amélie", 2001) == matcher.identify("Amelie", 2001) == (0, "amelie")
    assert matcher.identify("Ben‐Hur", 1960) == (7, "ben hur")
    text = "Amélie (2001)\nAmelie (2001)\nBen Hur (1959)"
    result = matcher.match(parse_items(text), [("Amelie", "2001"), ("Ben-Hur", "1959")], [])
    assert (result.relevance, result.duplicate) == ([1, 0, 1], [False, True, False])
    for protocol in ("strict", "paper"):
        metrics = evaluate_row(parse_items(text), [("Amelie", 2001), ("Ben-Hur", 1959)], [], matcher, protocol, ks=[3])
        assert (metrics["recall@3"], metrics["catalog_rows"]) == (1, [0, 0, 7])
    seen = matcher.match(parse_items("Amelie (2001)\nAmélie (2001)"), [], ["Amélie"]).seen
    assert (seen, matcher.seen_rows(["Amélie"])) == ([True, True], [0, 1])


def test_equally_folded_titles_of_different_years_are_two_items():
    matcher = Matcher(Catalog.from_items(RESPELT))
    assert compute_relevance(matcher, "The Fall (2006)", [("Fall", 2022)]) == [0]
    assert compute_relevance(matcher, "Fall (2022)", [("The Fall", 2022)]) == [1]  # the only such film of that year
    # Mother! and Mother (2017) are one film; Mother (2018) is another.
    items = [Item("Mother!", 2017), Item("Mother", 2017), Item("Mother", 2018)]
    assert matcher.match(items, [], ["Mother!"]).seen == [True, True, False]
    assert matcher.seen_rows(["Mother!"]) == [4, 5]


def test_exact_and_reference_matching_accept_one_spelling():
    for mode in ("exact", "reference"):
        matcher = Matcher(Catalog.from_items(RESPELT), mode)
        assert matcher.identify("Amélie", 2001).index == 1
        assert compute_relevance(matcher, "Amélie (2001)", [("Amelie", 2001)]) == [0]
    undated = Matcher(Catalog.from_items([(title, None) for title, _ in RESPELT[:2]]))  # no years to agree
    assert undated.identify("Amélie", NO_YEAR).index == 1


@pytest.mark.parametrize("mode", ["fuzzy", "exact"])
def test_ids_of_the_catalog_decide_what_is_one_item(mode):
    films = [("Fall", 2022), ("The Fall", 2022), ("Heat", 1995), ("Heat", 1996), ("Live Die Repeat", 2014)]
    films.append(("Edge of Tomorrow", 2014))
    matcher = Matcher(Catalog.from_items(films, item_ids=["a", "b", "c", "d", "e", "e"]), mode)
    assert compute_relevance(matcher, "The Fall (2022)", [("Fall", 2022)]) == [0]
    assert compute_relevance(matcher, "Heat (1996)", [("Heat", 1995)]) == [0]  # without ids a year off is a hit
    assert compute_relevance(matcher, "Edge of Tomorrow (2014)", [("Live Die Repeat", 2014)]) == [1]
    assert matcher.seen_rows(["Edge of Tomorrow"]) == [4, 5]
    assert matcher.match([Item("Fall", 2022), Item("The Fall", 2022)], [], ["The Fall"]).seen == [False, True]


def test_a_film_that_is_relevant_twice_counts_once():
    films = [("Se7en", 1995), ("Heat", 1995)]
    pairs = [("Seven", 1995), ("Se7en", "1996"), ("Heat", 1995), ("Nowhere", 1999), ("nowhere", "1999")]
    items = [Item("Seven", 1995), Item("Heat", 1995), Item("Se7en", 1995)]
    for mode, num_truths in (("fuzzy", 3), ("exact", 4), ("reference", 5)):
        assert len(Matcher(Catalog.from_items(films), mode).truths(pairs)) == num_truths
    matcher = Matcher(Catalog.from_items(films))
    assert matcher.match(items, pairs, []).relevance == [1, 1, 0]
    for protocol in ("strict", "paper"):
        metrics = evaluate_row(items, pairs, [], matcher, protocol, ks=[3])
        assert (metrics["num_truth"], metrics["recall@3"]) == (3, pytest.approx(2 / 3))


def test_each_ground_truth_is_hit_once_and_nearest_year_wins(exact):
    # 2020 takes 2021 (one year off) rather than 2022; 2022 then takes 2022.
    truth = [("The Stranger", 2022), ("The Stranger", 2021)]
    assert compute_relevance(exact, "The Stranger (2020)\nThe Stranger (2022)", truth) == [1, 1]
    assert compute_relevance(exact, "The Stranger (2020)\nThe Stranger (2022)", truth[:1]) == [1, 0]


def test_relevant_rows_are_those_of_the_catalog_each_once(fuzzy):
    truth = [("Heat", 1995), ("Matrix", "1999"), ("Up", 2009), ("The Matrix", 1998), ("The Stranger", None)]
    assert fuzzy.find_relevant_rows(truth) == [ROW["Heat", 1995], 0]  # which Stranger is unknown


def test_year_tolerance_is_between_item_and_ground_truth(exact):
    # Both are within 2 of the catalog's 1999, but 3 apart.
    assert compute_relevance(exact, "The Matrix (1998)", [("The Matrix", 2001)]) == [0]
    assert compute_relevance(exact, "The Matrix (1998)", [("The Matrix", 2000)]) == [1]


@pytest.mark.parametrize("year", ["n/a", None, "", "19x5"])
def test_undated_ground_truth_matches_the_only_item_of_that_name(fuzzy, exact, year):
    for title in ("Heat", "heat", "The Outsiders", "The Matrix"):
        text = "Heat (1996)\nThe Outsiders (1983)\nThe Matrix (1999)"
        assert compute_relevance(fuzzy, text, [(title, year)]).count(1) == 1
    # Two films, another article, another number, a typo; exact matching needs the year.
    for title in ("The Stranger", "Mother", "Outsiders", "Toy Story 4", "Haet"):
        text = "The Stranger (2020)\nMother (2009)\nThe Outsiders (1983)\nToy Story 3 (2010)\nHeat (1995)"
        assert compute_relevance(fuzzy, text, [(title, year)]) == [0] * 5
    assert compute_relevance(exact, "Heat (1995)", [("Heat", year)]) == [0]
    only = Matcher(Catalog.from_items([("Heat", 1995)]), "exact")
    assert compute_relevance(only, "Heat (1995)", [("Heat", year)]) == [0]


def test_seen_titles_have_no_year_and_any_case(fuzzy, exact):
    for matcher in (fuzzy, exact):
        for seen in ("heat", "Heat (1995)"):
            assert matcher.match([Item("Heat", 1995)], [], [seen]).seen == [True]
        assert matcher.match([Item("Heat", 1995)], [], None).seen == [False]
    assert fuzzy.match([Item("The Matrix", 1999)], [], ["matrix"]).seen == [True]
    # The catalog has Mother! and Mother, which are two titles in exact matching.
    assert exact.match([Item("Mother", 2017), Item("Mother!", 2017)], [], ["Mother!"]).seen == [False, True]


def test_titles_outside_the_catalog_are_seen_too(fuzzy, exact):
    for matcher, seen in ((exact, ["up"]), (fuzzy, ["Up!"])):
        items = parse_items("Up (2009)\nno item\nUp Again (2009)")
        assert matcher.match(items, [], seen).seen == [True, False, False]
        assert matcher.match(items, [], ["Heat"]).seen == [False] * 3
        assert matcher.seen_rows(["Up", "Up (2009)"]) == []


def test_another_year_of_one_film_is_a_repeat(exact):
    for title, year in (("Heat", 1995), ("The Matrix", 1999)):  # The Matrix is the catalog's first row
        items = [Item(title, year), Item(title, year + 1)]
        assert exact.match(items, [], []).duplicate == [False, True]


def test_out_of_catalog_repeats_are_duplicates_too(exact):
    assert exact.match(parse_items("Up (2009)\nup (2009)\nUp (2010)"), [], []).duplicate == [False, True, False]


def test_reference_mode_needs_the_exact_title_and_year():
    matcher = Matcher(Catalog.from_items(FILMS), "reference")
    truth = [("the matrix", "1999")]
    # Ground truth is case-folded, the catalog is not; seen titles are compared letter by letter.
    assert compute_relevance(matcher, "The Matrix (1999)", truth) == [1]
    assert compute_relevance(matcher, "the matrix (1999)", truth) == [0]
    assert compute_relevance(matcher, "The Matrix (2000)", truth) == [0]
    assert compute_relevance(matcher, "The Matrix (1999)", truth, ["the matrix"]) == [1]
    assert compute_relevance(matcher, "The Matrix (1999)", truth, ["The Matrix"]) == [0]
    assert compute_relevance(matcher, "The Matrix (1999)", [("The Matrix", "1999.0")]) == [0]
    # Repeats count while ground truth is left: first 1999, then one year later; one year earlier is left.
    truth = [("The Matrix", 1998), ("The Matrix", 2000), ("The Matrix", 1999)]
    assert compute_relevance(matcher, "The Matrix (1999)\n" * 2, truth) == [1, 1]
    assert matcher.match_lines(["The Matrix (1999)"] * 2, truth, []).relevance == [1, 1]


def test_seen_rows_in_reference_mode_need_the_exact_title():
    matcher = Matcher(Catalog.from_items(FILMS), "reference")
    assert matcher.seen_rows(["Heat", "Mother", "Heat"]) == [15, 16, 20]
    assert matcher.seen_rows(["heat", "Heat (1995)", "Mother!!"]) == []


def test_reference_mode_marks_repeats_and_lines_without_an_item():
    matcher = Matcher(Catalog.from_items(FILMS), "reference")
    result = matcher.match([None, None, Item("Heat", 1995), Item("Heat", 1995), Item("Up", 2009)], [], None)
    assert result.in_catalog == [False, False, True, True, False]
    assert result.duplicate == [False, False, False, True, False]
    assert result.catalog_index == [-1, -1, 20, 20, -1]


@pytest.mark.parametrize("bad", [{"mode": "loose"}, {"year_tolerance": -1}, {"fuzzy_cutoff": 0}, {"fuzzy_cutoff": 101}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=str(next(iter(bad.values())))):
        Matcher(Catalog.from_items(FILMS), **bad)


def test_settings_at_the_ends_of_their_ranges_are_accepted():
    strict = Matcher(Catalog.from_items([("The Matrix", 1999)]), year_tolerance=0, fuzzy_cutoff=100)
    found = [strict.identify(*item).index for item in (("matrix", 1999), ("The Matirx", 1999), ("The Matrix", 2000))]
    assert found == [0, -1, -1]
    Matcher(Catalog.from_items(FILMS), fuzzy_cutoff=0.5)


def test_an_exact_title_wins_over_another_spelling_of_its_year():
    matcher = Matcher(Catalog.from_items([("Mother!", 2017), ("Mother", 2016)]))
    assert [matcher.identify(title, 2016).index for title in ("Mother!", "Mother", "mother?")] == [0, 1, 1]


def test_a_title_of_signs_alone_is_not_seen_with_another() -> None:
    matcher = Matcher(Catalog.from_items([("$", 1971), ("Heat", 1995)]))
    assert matcher.match([Item("$", 1971), Item("Heat", 1995)], [], ["?"]).seen == [False, False]


def test_threads_share_a_matcher(fuzzy):
    items = [Item(f"The Matrix{letter}", 1999) for letter in "abcdefgh"] * 20
    expected = fuzzy.match(items, [("The Matrix", 1999)], [])
    results = []
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
item_lists = st.lists(
    st.one_of(st.none(), st.builds(lambda film, shift: Item(film[0], film[1] + shift), films, st.integers(-3, 3))),
    max_size=25,
)


@given(item_lists, st.lists(films, max_size=6), st.lists(films.map(lambda film: film[0]), max_size=3), st.sampled_from(
    ["fuzzy", "exact", "reference"]
))  # fmt: skip
def test_hits_are_in_catalog_unseen_and_at_most_the_ground_truth(items, truth, seen, mode):
    result = MATCHERS[mode].match(items, truth, seen)
    assert all(len(column) == len(items) for column in result)
    assert sum(result.relevance) <= len(truth)
    for rank, hit in enumerate(result.relevance):
        assert not hit or (result.in_catalog[rank] and not result.seen[rank])
        assert not (hit and result.duplicate[rank]) or mode == "reference"
        assert result.in_catalog[rank] == (result.catalog_index[rank] >= 0)


MATCHERS = {mode: Matcher(Catalog.from_items(FILMS), mode) for mode in ("fuzzy", "exact", "reference")}

# Cases in which only fuzzy matching differs from the reference.
FUZZY_DIFFERENCES = {
    "gt year unparsable is dropped": ([1, 0, 0, 0, 0], "the catalog has one film of that name"),
    "punctuation-different fails": ([1, 0, 0, 0, 0], "Moulin Rouge! and Moulin Rouge of one year are one film"),
}
# Where relevance deliberately differs from the reference's recorded rewards (exp_inf). All other cases must agree.
DIFFERENCES = {
    'gt year "1995.0" is dropped': ([1, 0, 0, 0, 0], "1995.0 is a year"),
    "case-different rec fails catalog": ([1, 0, 0, 0, 0], "titles are case-folded"),
    "seen is case-sensitive and year-blind": ([0, 0, 0, 0, 0], "a seen title is seen in any case, with a year or not"),
    "+1 preferred over -1": ([1, 0, 0, 0, 0], "the item is also at an earlier rank"),
    "unparsable middle line is dropped (shifts later rewards up)": (
        [0, 0, 1, 0, 0],
        "rank k is the k-th line: the reward stays on the tokens that earned it",
    ),
    "seen None": ([1, 0, 0, 0, 0], "seen titles may be missing"),
}


@pytest.mark.parametrize("mode", ["exact", "fuzzy", "reference"])
def test_recorded_rewards_agree_except_for_documented_cases(golden, mode):
    from convrec.lists.rank_rewards import rank_returns

    recorded = golden("parse_match_cases")
    catalog = Catalog.from_items(map(tuple, recorded["catalog"]))
    differences = DIFFERENCES | (FUZZY_DIFFERENCES if mode == "fuzzy" else {})
    differing = set()
    for case in recorded["reward_cases"]:
        parse = parse_items_reference if mode == "reference" else parse_items
        matcher = Matcher(catalog, mode, **case["kwargs"])
        items = parse(case["completion"])[: case["rec_num"]]
        rel = matcher.match(items, case["groundtruth_with_release_year"], case["seen_titles"]).relevance
        returns = rank_returns(rel, case["rec_num"])
        if returns != case["output"].get("exp_inf"):
            differing.add(case["name"])
            assert returns == differences[case["name"]][0], differences[case["name"]][1]
        else:
            assert rank_returns(rel, case["rec_num"], "log_decay") == pytest.approx(case["output"]["log_decay"])
    # The reference raises a TypeError if there are no seen titles, which mode `reference` does not reproduce.
    assert differing == ({"seen None"} if mode == "reference" else set(differences))


def test_lookups_are_cached_per_matcher() -> None:
    first = Matcher(Catalog.from_items([("Heat", 1995), ("Alien", 1979)]))
    second = Matcher(Catalog.from_items([("Alien", 1979), ("Heat", 1995)]))
    for _ in range(3):
        assert first.identify("Heat", 1995).index == 0
        assert second.identify("Heat", 1995).index == 1
    assert (first.identify.cache_info().misses, first.identify.cache_info().hits) == (1, 2)
    assert first.identify.__wrapped__("Heat", 1995) == first.identify("Heat", 1995)
