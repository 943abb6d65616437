"""Titles and the catalog items that they match."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.forms import fold, fold_parts, make_short_forms, normalise, numbers, turn_article
from convrec.titles.item import NO_YEAR
from convrec.titles.matching import Matcher
from data_prep.sample_data.films import load_films
from tests.convrec.titles.matching_films import ROW


@pytest.mark.parametrize(
    ("title", "year", "film"),
    [
        ("the  MATRIX", 1999, ("The Matrix", 1999)),
        ("The Matrix", 2001, ("The Matrix", 1999)),  # within the tolerance of 2
        ("The Matrix", 2002, None),
        ("Ｈeat", 1995, ("Heat", 1995)),  # NFKC: full-width H
        ("Matrix", 1999, None),
        ("Moulin Rouge", 2001, None),
        ("The Stranger", 2021, ("The Stranger", 2020)),  # both one year off: the earlier row
        ("The Stranger", 2023, ("The Stranger", 2022)),  # the nearest year
        ("$", 1971, ("$", 1971)),
        ("The Wall", 201, None),  # an invalid year was reported at load and never matches
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
        ("Mother", 2017, ("Mother!", 2017)),  # one item, represented by its first row
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
        # another real word is not a typo
        ("Heart", 1995, None),
        ("Before Sunset", 1995, None),
        ("Alien", 1986, None),
        ("Avatar", 2004, None),
        ("Sunrise", 1995, None),
        ("Primer", 2005, None),  # not in the catalog, but differs by an ending from a word that is
        ("Sisters", 2012, None),
        ("Live Free or Die", 2007, None),  # a word is omitted
        # a non-word is a typo, and so is one letter in twenty
        ("Haet", 1995, ("Heat", 1995)),
        ("Before Sunrize", 1995, ("Before Sunrise", 1995)),
        ("Alienz", 1986, ("Aliens", 1986)),
        ("The Aviater", 2004, ("The Aviator", 2004)),
        ("The Silence of the Lamb", 1991, ("The Silence of the Lambs", 1991)),
        # spaces, articles and `and` do not make another title
        ("The Texas Chainsaw Massacre", 1974, ("The Texas Chain Saw Massacre", 1974)),
        ("The Silence of Lambs", 1991, ("The Silence of the Lambs", 1991)),
        ("Romeo + Juliet", 1968, ("Romeo & Juliet", 1968)),
    ],
)
def test_word_guard(title, year, film):
    row = Matcher(Catalog.from_items(WORDS)).identify(title, year).index
    assert row == (WORDS.index(film) if film else -1)


def test_next_similar_title_wins_when_nearest_has_another_word():
    # `zampers` is nearer to Zamper, from which it differs by an ending, than to Zompers.
    assert Matcher(Catalog.from_items([("Zamper", 2001), ("Zompers", 2001)])).identify("Zampers", 2001).index == 1


def test_a_typo_is_found_behind_many_similar_other_titles():
    # five titles with four more letters (ratio 92.6) are nearer than the one with two typos (92)
    films = [(f"Zampolin{middle}kravotex", 2001) for middle in ("qiwo", "quwe", "qawu", "qewi", "qowa")]
    matcher = Matcher(Catalog.from_items([*films, ("Zampulinkravetex", 2001)]))
    assert matcher.identify("Zampolinkravotex", 2001).index == 5


@pytest.mark.parametrize(
    ("title", "year", "row"),
    [
        ("Teh Matrix", 1999, 0),
        ("She Matrix", 1999, -1),  # a word that is one letter away from an article
        ("Red Matrix", 1999, -1),
        ("Sevne Samurai", 1954, 1),
        ("Sveen Samurai", 1954, 1),
        ("Tin Men", 1987, -1),  # a word that is one letter away from a number
        ("Two Men", 1987, -1),
        ("Het", 1995, 3),
        ("Ha", 1995, -1),
    ],
)
def test_typos_in_articles_numbers_and_short_titles(title, year, row):
    films = [("The Matrix", 1999), ("Seven Samurai", 1954), ("Ten Men", 1987), ("Heat", 1995)]
    assert Matcher(Catalog.from_items(films)).identify(title, year).index == row


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
        # the sequel guard, and no tolerance in years: a note can name another film
        ("Dune (Part Two) (2021)", None),
        ("Dune 2 (Dune) (2021)", None),
        ("Heat (Director's Cut) (1996)", None),
        ("Twilight (New Moon) (2009)", None),
    ],
)
def test_notes_second_titles_and_numbers_are_read_as_a_fallback(line, film):
    row = Matcher(Catalog.from_items(SECOND_TITLES)).match_lines([line], [], []).catalog_index[0]
    assert row == (SECOND_TITLES.index(film) if film else -1)


def test_title_with_parentheses_beats_the_title_without_them():
    films = [("Birdman", 2014), ("Birdman (The Unexpected Virtue of Ignorance)", 2014)]
    matcher = Matcher(Catalog.from_items(films))
    assert [matcher.identify(*film).index for film in films] == [0, 1]
    undated = Matcher(Catalog.from_items([("Kettle", None), ("Kettle (red)", None)]))
    assert undated.identify("Kettle (blue)", NO_YEAR).index == -1  # no years to agree
    assert undated.identify("1: Kettle (red)", NO_YEAR).index == 1


def test_sequel_guard_holds_where_only_the_number_differs(fuzzy):
    # One of 41 letters differs and the years are one apart: without the guard, similarity is far above the cutoff.
    title = "Harry Potter and the Deathly Hallows: Part 1"
    assert fuzzy.identify(title, 2011).index == ROW[(title, 2010)]
    assert fuzzy.identify(title.replace("Part", "Prat"), 2011).index == ROW[(title, 2010)]


@pytest.mark.parametrize(
    ("title", "folded", "number"),
    [
        ("The X-Men", "x men", ()),
        ("The Heat", "heat", ()),
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
        ("Rock ‘n’ Roll", "rock and roll", ()),
        ("Rock 'n' Roll", "rock and roll", ()),
        ("Barbie (TM)", "barbie", ()),
        ("Nineteen Eighty-Four", "1984", (1984,)),
        ("Twenty Thousand Leagues", "20000 leagues", (20000,)),
        ("20 000 Leagues", "20000 leagues", (20000,)),
        ("One, Two, Three", "1 2 3", (1, 2, 3)),
        ("One Hundred and One Nights", "101 nights", (101,)),
        ("Thirteen Eighty-One", "1381", (1381,)),
        ("Nineteen Ten", "1910", (1910,)),
        ("Seven Eleven", "7 11", (7, 11)),
        ("Sixty Ten", "60 10", (60, 10)),
        ("Twenty-One Two", "21 2", (21, 2)),
        ("One Hundred Twenty-One Days", "121 days", (121,)),
        ("Two Thousand and Counting", "2000 and counting", (2000,)),
        ("Two Thousand and", "2000 and", (2000,)),  # a list that was cut off
        ("Fourteen Hundred", "1400", (1400,)),
        ("One Thousand Two Hundred and Three Nights", "1203 nights", (1203,)),
        ("Two Hundred Thousand and Five", "200005", (200005,)),
        ("One Million Two Thousand Three", "1002003", (1002003,)),
        ("Three Thousand Thousand", "3000 thousand", (3000,)),
        ("One Hundred Hundred", "100 hundred", (100,)),
        ("Twenty and Two", "20 and 2", (20, 2)),
        ("Forty-Second Street", "42nd street", (42,)),
        ("One Hundred and Twenty-First Street", "121st street", (121,)),
        ("Ten First Kisses", "10 first kisses", (10,)),
        ("12 345 678", "12345678", (12345678,)),
        ("999 999", "999999", (999999,)),
        ("1000 000", "1000 000", (1000, 0)),  # spaces are between groups of three
        ("5 Thousand Days", "5000 days", (5000,)),
        ("123456789 Thousand", "123456789000", (123456789000,)),
        ("1234567890 Thousand", "1234567890 thousand", (1234567890,)),
        ("Million Dollar Baby", "million dollar baby", ()),
        ("The Twenty-First Hour", "21st hour", (21,)),
        ("11.22.63", "11 22 63", (11, 22, 63)),
        ("Don't", "dont", ()),
        ("Ocean's Eleven", "oceans 11", (11,)),
        ("Counter-Strike™", "counter strike", ()),
        ("™", "tm", ()),
        ("AT&T &amp; Me", "at and t and me", ()),
        ("M*A*S*H", "mash", ()),
        ("Dr. T. & the Women", "doctor t and the women", ()),
        ("Smørrebrød", "smorrebrod", ()),
        ("A", "a", ()),
        ("$", "", ()),
        ("千と千尋の神隠し", "千と千尋の神隠し", ()),
    ],
)
def test_folding(title, folded, number):
    assert (fold(title), numbers(fold(title))) == (folded, number)


@pytest.mark.parametrize(
    ("title", "short_forms"),
    [
        ("Heat", []),
        ("Star Trek II: The Wrath of Khan", ["star trek 2", "wrath of khan", "star trek wrath of khan"]),
        ("Rambo: First Blood Part II", ["rambo 2", "first blood 2"]),  # Rambo is another film
        ("Star Wars: Episode V - The Empire Strikes Back",
         ["star wars", "star wars 5", "empire strikes back", "star wars empire strikes back"]),
        ("Justice League: War", ["justice league"]),  # war is an English word
        ("Dune: Part Two", []),
        ("Nymphomaniac: Vol. I", ["nymphomaniac"]),
        ("300: Rise of an Empire", ["300", "rise of an empire"]),
        ("Kill Bill: Zorba: Vol. 2", ["zorba 2"]),  # the second volume of Zorba, not of Kill Bill
    ],
)  # fmt: skip
def test_short_forms_of_titles_with_several_parts(title, short_forms):
    parts = fold_parts(title)
    whole = {" ".join(parts)} if len(parts) > 1 else set()
    assert make_short_forms(parts) == whole | set(short_forms)


@pytest.mark.parametrize(
    ("title", "turned"),
    [
        ("Matrix, The", "The Matrix"),
        ("Avventura, L'", "L'Avventura"),
        ("Godfather, The: Part II", "The Godfather: Part II"),
        ("Misérables, Les", "Les Misérables"),
        ("Now, Voyager", "Now, Voyager"),
    ],
)
def test_trailing_articles_move_to_the_front(title, turned):
    assert turn_article(title) == turned


@given(st.text(max_size=30))
def test_folding_is_idempotent_up_to_case_and_drops_punctuation(title):
    folded = fold(title)
    assert all(ch.isalnum() or ch == " " or not ch.isprintable() or ord(ch) > 127 for ch in folded)
    assert fold(normalise(title)) == folded


@pytest.fixture(params=["sample", "released"])
def two_catalogs(request):
    """Return a catalog, another one, and the share of misspelled titles that must be found."""
    if request.param == "sample":
        films = [(film.title, film.year) for film in load_films().films]
        return Catalog.from_items(films[::2]), Catalog.from_items(films[1::2]), 0.825
    data = request.getfixturevalue("shared_dir") / "data"
    return load_catalog(data / "reddit_v2_catalog.parquet"), load_catalog(data / "redial" / "catalog.parquet"), 0.85


def test_misspelt_titles_are_found_and_foreign_ones_are_not(two_catalogs):
    catalog, other, min_share = two_catalogs
    matcher = Matcher(catalog)
    rng = random.Random(3407)
    dated = [item for item in zip(catalog.titles, catalog.years, strict=True) if item[1]]
    is_found = []
    for typos in (1, 2) * 300:
        title, year = rng.choice([item for item in dated if len(item[0]) > 1])
        text = title
        for _ in range(typos):
            place, letter = rng.randrange(len(text)), rng.choice("abcdefghijklmnopqrstuvwxyz")
            text = text[:place] + letter + text[place + rng.randint(0, 1) :]
        row = matcher.identify(text, year).index
        is_found.append(row >= 0 and fold(catalog.titles[row]) == fold(title))
    assert sum(is_found) / len(is_found) >= min_share

    catalog_titles = {fold(title) for title in catalog.titles}
    other_items = zip(other.titles, other.years, strict=True)
    foreign = [(title, year) for title, year in other_items if year and fold(title) not in catalog_titles]
    matched = [item for item in foreign if matcher.identify_line(*item).index >= 0]
    assert len(matched) / len(foreign) < 0.01
