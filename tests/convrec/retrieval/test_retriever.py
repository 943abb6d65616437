"""Retrieved lists by hand, and that no training row retrieves its own answer."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.retrieval import parts
from convrec.retrieval.conversations import Conversation
from convrec.retrieval.parts import PENALTY
from convrec.retrieval.retriever import PARTS, POPULARITY, Choice, Retriever, fit
from tests.user_errors import refuses

ALIEN, HEAT, JAWS, UP = range(4)
TITLES = ["Alien", "Heat", "Jaws", "Balloon house"]
ROWS = [
    Conversation("space monsters spaceship", [], "c1", [ALIEN]),
    Conversation("robbery detective crime", [], "c2", [HEAT]),
    Conversation("robbery crime drama", [ALIEN], "c3", [HEAT, JAWS]),
    Conversation("sharks beach", [ALIEN, HEAT], "c4", [JAWS]),
]
ALL = Choice(2, 10.0, dict.fromkeys(PARTS, 1.0))


def retriever(rows: Sequence[Conversation] = ROWS, choice: Choice = ALL) -> Retriever:
    return Retriever(fit(rows, len(rows), len(TITLES)), TITLES, choice)


def no_rows() -> np.ndarray:
    return np.empty(0, int)


def test_neighbour_scores_sum_cosines_of_rows_wanting_the_item() -> None:
    """R = 4; idf(w) = ln(5 / (1 + rows)) + 1: 1.511 for robbery and crime (2 rows), 1.916 for the others (1 row).

    Row c2 is (robbery, detective, crime), with norm sqrt(2 * 1.511^2 + 1.916^2) = 2.870, as is that of c3.
    """
    common, rare = math.log(5 / 3) + 1, math.log(5 / 2) + 1
    cosine = 2 * common * common / (math.sqrt(2 * common**2 + rare**2) * math.sqrt(2 * common**2))
    scores = retriever().neighbours.score_items("a robbery, a crime", [], no_rows())
    np.testing.assert_allclose(scores, [0, 2 * cosine, cosine, 0], rtol=1e-6)
    without_c3 = retriever().neighbours.score_items("a robbery, a crime", [], np.array([2]))
    np.testing.assert_allclose(without_c3, [0, cosine, 0, 0], rtol=1e-6)


def test_nearest_neighbours_include_ties_at_the_cutoff() -> None:
    one = retriever(choice=Choice(1, 10.0, ALL.weights))
    # only c2 has detective, so it is nearer than c3; without this word they tie
    assert np.flatnonzero(one.neighbours.score_items("robbery crime detective", [], no_rows())).tolist() == [HEAT]
    assert np.flatnonzero(one.neighbours.score_items("robbery crime", [], no_rows())).tolist() == [HEAT, JAWS]


@settings(max_examples=30)
@given(st.integers(1, 400), st.integers(0, 10_000))
def test_the_nearest_rows_are_those_of_a_sort(count: int, seed: int) -> None:
    """The threshold from a sixteenth of the rows must not lose any."""
    rng = np.random.default_rng(seed)
    cosine_R = np.round(rng.random(700) * (rng.random(700) < 0.7), 2).astype(np.float32)
    neighbours: Any = object.__new__(parts.Neighbours)
    neighbours.count = count
    threshold = np.sort(cosine_R)[::-1][count - 1] if count < 700 else 0
    expected = np.flatnonzero((cosine_R >= threshold) & (cosine_R > 0))
    assert neighbours.find_nearest(cosine_R).tolist() == expected.tolist()


def test_common_words_are_ignored_if_there_are_too_many_postings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "POSTINGS", 2)  # detective: 1 row; robbery: 2
    scores = retriever().neighbours.score_items("robbery detective", [], no_rows())
    assert np.flatnonzero(scores).tolist() == [HEAT]  # c3 has only robbery
    monkeypatch.setattr(parts, "POSTINGS", 0)  # one word is always kept
    assert np.flatnonzero(retriever().neighbours.score_items("robbery", [], no_rows())).tolist() == [HEAT, JAWS]


def test_the_ridge_by_hand() -> None:
    """Named X (Alien, Heat): rows c3 (1, 0), c4 (1, 1); Jaws is relevant in both, Heat in c3.

    X'X + 50 I is [[52, 1], [1, 51]], its inverse [[51, -1], [-1, 52]] / 2651. X'y for Jaws is (2, 1), so its weights
    are (101, 50) / 2651; for Heat it is (1, 0): (51, -1) / 2651.
    """
    assert PENALTY == 50
    scores = retriever().ridge.score_items("", [ALIEN], no_rows())
    np.testing.assert_allclose(scores, [0, 51 / 2651, 101 / 2651, 0], atol=1e-6)
    both = retriever().ridge.score_items("", [ALIEN, HEAT], no_rows())
    np.testing.assert_allclose(both, [0, 50 / 2651, 151 / 2651, 0], atol=1e-6)
    assert not retriever().ridge.score_items("", [UP], no_rows()).any()


def test_text_finds_items_that_were_never_relevant() -> None:
    lists = retriever().lists(Conversation("a house in the sky"))
    assert lists["text"] == [UP]
    assert UP not in lists[POPULARITY]


def test_parts_are_fused_and_popular_items_come_last() -> None:
    asked = Conversation("robbery crime house", [ALIEN])
    lists = retriever().lists(asked)
    assert lists == {"neighbours": [HEAT, JAWS], "ridge": [JAWS, HEAT], "text": [UP], POPULARITY: [HEAT, JAWS, ALIEN]}
    # Heat and Jaws tie with 1/11 + 1/12, in the first list's order; Up 1/11; Alien is relevant once
    assert retriever().rank(asked) == [HEAT, JAWS, UP, ALIEN]
    allowed = np.array([True, False, True, True])
    assert retriever().rank(asked, allowed) == [JAWS, UP, ALIEN]  # Jaws is first among the allowed: 1/11 + 1/11


def test_a_short_list_is_the_beginning_of_the_whole_one_and_ranks_no_other_items() -> None:
    for asked in (Conversation("robbery crime house", [ALIEN]), Conversation("quixotic")):
        whole = retriever().rank(asked)
        assert [retriever().rank(asked, count=count) for count in range(5)] == [whole[:count] for count in range(5)]
        assert len(retriever().lists(asked, num_popular=2)[POPULARITY]) == 2


def test_popularity_decides_without_common_words_or_named_items() -> None:
    for text in ("", "quixotic", "the and of", "SYSTEM: \nUSER: \n"):
        assert retriever().rank(Conversation(text)) == [HEAT, JAWS, ALIEN]  # 2, 2, 1 times


def test_rows_without_relevant_items_or_words_are_refused() -> None:
    with refuses("retrieval.no-relevant-items", "none of 1"):
        retriever([Conversation("space", [], "c1", [])])
    with refuses("retrieval.no-words"):
        retriever([Conversation("", [], "c1", [HEAT])])
    with refuses("retrieval.no-words"):
        retriever([])


def test_rows_without_named_items_leave_the_ridge_empty() -> None:
    fitted = retriever([row._replace(named=[]) for row in ROWS])
    assert not fitted.ridge.score_items("", [ALIEN], no_rows()).any()
    assert fitted.rank(Conversation("robbery", [ALIEN]))[0] == HEAT


WORDS = ["space", "robbery", "crime", "beach", "drama", "sharks"]
ROW = st.builds(
    Conversation,
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
    st.lists(st.integers(0, 3), max_size=3, unique=True),
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.integers(0, 3), max_size=3, unique=True),
    seen=st.lists(st.integers(0, 3), max_size=1),
)


@settings(max_examples=60)
@given(st.lists(ROW, min_size=3, max_size=8), st.data())
def test_no_row_finds_its_own_answer(rows: list[Conversation], data: st.DataObject) -> None:
    """The lists for a training row do not depend on the relevant items of its own conversation's rows.

    The ridge's scores are those of a fit without these rows.
    """
    asked = data.draw(st.sampled_from(rows))
    others = [row for row in rows if row.name != asked.name]
    wanted = st.lists(st.integers(0, 3), max_size=3, unique=True)
    answers = [row._replace(wanted=data.draw(wanted)) if row.name == asked.name else row for row in rows]
    if not any(row.wanted for row in rows) or not any(row.wanted for row in answers):
        return
    choice = Choice(2, 10.0, {"neighbours": 1.0, "text": 1.0})
    before = retriever(rows, choice)
    after = retriever(answers, choice)
    assert before.lists(asked) == after.lists(asked)
    own = np.flatnonzero(before.conversation_R == asked.key)
    scores = before.ridge.score_items("", asked.named, own)
    np.testing.assert_allclose(after.ridge.score_items("", asked.named, own), scores, atol=3e-6)
    if any(row.wanted for row in others):
        expected = retriever(others).ridge.score_items("", asked.named, no_rows())
        np.testing.assert_allclose(scores, expected, atol=3e-6)
    others_items = {item for row in others for item in row.wanted}
    for items in before.lists(asked, names=("neighbours", "ridge")).values():
        assert {*items} <= others_items - {*asked.seen}


def test_ridge_gives_unknown_items_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "RIDGE_ITEMS", 2)  # Alien and Jaws
    rows = [*ROWS, Conversation("space", [ALIEN], "c1", [HEAT])]
    fitted = retriever(rows)
    assert fitted.ridge.items_K.tolist() == [ALIEN, HEAT]
    for asked in rows:
        scores = fitted.ridge.score_items("", asked.named, np.flatnonzero(fitted.conversation_R == asked.key))
        assert not scores[[JAWS, UP]].any()


def test_conversations_outside_training_use_all_rows() -> None:
    for name in (None, "of nobody"):
        assert retriever().rank(Conversation("space monsters", [], name))[0] == ALIEN
    assert ALIEN not in retriever().rank(Conversation("space monsters", [], "c1"))


LONG = "USER: I would like some space monsters on a spaceship, please\n"
LATER = LONG + "SYSTEM: That one?\nUSER: Seen it, and the robbery detective crime too\n"


@pytest.mark.parametrize(
    ("asked", "is_own"),
    [
        (LONG, True),
        (LONG.replace("some", "SOME").replace(" on ", "  on\t"), True),
        (LATER, True),  # it continues the row
        (LATER + "SYSTEM: Jaws?\nUSER: yes\n", True),
        (LONG.replace("monsters", "monster"), False),
        ("USER: I would like some space\n", False),  # the row continues it, but within a turn
    ],
)
def test_copied_training_row_does_not_retrieve_its_own_answer(asked: str, is_own: bool) -> None:
    fitted = retriever([*ROWS[1:], Conversation(LONG, [], "c1", [ALIEN])])
    assert (ALIEN not in fitted.rank(Conversation(asked, [], "another"))) == is_own
    assert ALIEN in fitted.rank(Conversation(asked, [], None))  # a live request has no training row


def test_row_continuing_a_conversation_is_not_retrieved_by_it() -> None:
    fitted = retriever([*ROWS[1:], Conversation(LATER, [], "c1", [ALIEN])])
    assert ALIEN not in fitted.rank(Conversation(LONG, [], "another"))
    short = [*ROWS[1:], Conversation("USER: Hi\nSYSTEM: Hello\nUSER: space\n", [], "c1", [ALIEN])]
    # many conversations begin like this
    assert ALIEN in retriever(short).rank(Conversation("USER: Hi\n", [], "another"))
