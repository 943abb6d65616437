"""Answers of judges become ratings."""

import pytest

from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from data_prep.stages.reflect import (
    make_cooccurrence_judge,
    parse_pointwise_rating,
    parse_ratings,
    rate_zero,
)

MATCHER = Matcher(
    Catalog.from_items(
        [
            ("Heat", 1995),
            ("Heat", 1986),
            ("Up", 2009),
            ("(500) Days of Summer", 2009),
            ("Amélie", 2001),
            ("8 Mile", 2002),
        ]
    )
)
HEAT, OLD_HEAT, UP, DAYS, AMELIE, MILE = range(6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Heat (1995)####2\nUp (2009)####-1", {HEAT: 2, UP: -1}),
        ("1. **Heat (1995)**####+1\n- Up (2009) #### -2\n", {HEAT: 1, UP: -2}),
        ("Heat (1986)####1\nHeat (1995)####0", {OLD_HEAT: 1, HEAT: 0}),
        ("(500) Days of Summer (2009)####−1\nAmelie (2001)####–2", {DAYS: -1, AMELIE: -2}),  # other dashes
        ("Up (2009)####rating: 1.5 good", {UP: 1.5}),
        ("Up (2009)####**2**", {UP: 2}),
        ("Up####1\nAmelie####2\nHeat####2", {UP: 1, AMELIE: 2}),  # there are two called Heat
        ("Up (2009)####1\nUp (2009)####-2", {UP: 1}),
        ("Up (2009)####3\nHeat (1995)####-10\nAmélie (2001)####good\n8 Mile (2002): 2", {}),
        ("Up (2009)####50%\nNo Such Film (1999)####2\n####\n", {}),
        ("I cannot rate films.", {}),
        ("", {}),
    ],
)
def test_list_answers_are_read_leniently(text, expected):
    assert parse_ratings(text, range(6), MATCHER) == expected


def test_only_candidates_are_rated():
    assert parse_ratings("Up (2009)####1\nHeat (1995)####2", [HEAT], MATCHER) == {HEAT: 2}


@pytest.mark.parametrize(
    ("text", "rating"),
    [
        ("<think>fits</think><score>4</score>", 2),
        ("<think><score>4</score></think>\n\n<score> 0 </score>", -2),
        ("<score>2</score>", 0),
        ("<think>so <score>4</score>", None),
        ("<think>x</think><score>5</score>", None),
        ("4", None),
    ],
)
def test_pointwise_verdicts_become_ratings(text, rating):
    assert parse_pointwise_rating(text) == rating


def test_another_scale_of_scores_has_the_same_ends():
    assert [parse_pointwise_rating(f"<score>{score}</score>", (1, 5)) for score in (1, 2, 3, 5)] == [-2, -1, 0, 2]


def row(sample_id, seen, truth):
    return {
        "prompt": [{"role": "user", "content": "x"}],
        "seen_titles": seen,
        "groundtruth_with_release_year": [list(pair) for pair in truth],
        "sample_id": sample_id,
    }


def test_cooccurrence_rates_by_lift():
    heat, up, mile = ("Heat", "1995"), ("Up", "2009"), ("8 Mile", "2002")
    # 20 conversations: 10 name X and are recommended Heat, 10 name Y and are recommended Up; 8 Mile is in 5 of each
    train = [row(f"x{n}_t1", ["X"], [heat] + [mile] * (n < 5)) for n in range(10)]
    train += [row(f"y{n}_t1", ["Y"], [up] + [mile] * (n < 5)) for n in range(10)]
    rate = make_cooccurrence_judge(MATCHER, train)
    block = [(row("new_t1", ["X"], []), [HEAT, UP, MILE, AMELIE]), (row("new_t1", ["Z"], []), [HEAT, UP])]
    # X is named in 10 conversations. Heat: observed 10, expected 10 * 10/20 = 5: (10 + 5) / (5 + 5) = 1.5 -> 1.
    # Up: 0, 5: 5 / 10 = .5 -> -2. 8 Mile: 5, 5: 1 -> 0. Amélie: 0, 0: 1 -> 0. Z was never named: all 0.
    assert rate(block) == [[1.0, -2.0, 0.0, 0.0], [0.0, 0.0]]
    # asked about x0 itself, its own counts leave: X in 9, Heat 9, expected 9 * 9/20 = 4.05: 14 / 9.05 = 1.55
    assert rate([(train[0], [HEAT])]) == [[1.0]]
    assert rate_zero(block) == [[0.0] * 4, [0.0] * 2]
