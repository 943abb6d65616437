"""The teacher without a language model: it knows only what it may, and ranks and draws as it says."""

import tracemalloc

import numpy as np

from benchmarks.studies import retrieval_teacher
from benchmarks.studies.retrieval_teacher import NEIGHBOURS, SHRINKAGE, Cooccurrence, RetrievalTeacher
from convrec.data.schema import parse_conversation_id
from tests.data_prep.conftest import COMEDY, HORROR, make_rows, row


def test_teacher_never_uses_the_conversation_it_answers():
    rows = make_rows("train", 30, 3)
    catalog = HORROR + COMEDY
    asked = rows[0]
    others = [
        other
        for other in rows
        if parse_conversation_id(other["sample_id"]) != parse_conversation_id(asked["sample_id"])
    ]
    changed = [{**r, "groundtruth_with_release_year": [list(COMEDY[0])]} if r in rows[:2] else r for r in rows]
    first, second = (RetrievalTeacher(table, catalog).scores([asked]) for table in (rows, changed))
    np.testing.assert_array_equal(first, second)
    # nor do its own words count, but for the document frequencies of TF-IDF
    assert RetrievalTeacher(others, catalog).lists([asked], 3, "x") == RetrievalTeacher(rows, catalog).lists(
        [asked], 3, "x"
    )


def test_equal_prompts_are_one_conversation_without_ids():
    first, *_ = rows = make_rows("train", 30, 3)
    named = [r | {"sample_id": f"user{n}"} for n, r in enumerate(rows)]
    only_wanted = [["Wanted by no one else", "2001"]]
    twin = first | {"sample_id": "twin", "groundtruth_with_release_year": only_wanted}
    catalog = [*HORROR, *COMEDY, tuple(only_wanted[0])]
    asked = named[0]
    assert RetrievalTeacher([*named, twin], catalog).scores([asked])[0, -1] == 0
    assert Cooccurrence([*named, twin], catalog).mentions(asked)[-1] == 0
    other = make_rows("other", 1, 5)[0] | {"sample_id": "o", "groundtruth_with_release_year": only_wanted}
    assert Cooccurrence([*named, twin, other], catalog).mentions(asked)[-1] == 1


def test_the_most_similar_rows_are_those_of_a_stable_sort_of_all(monkeypatch):
    rows, catalog = make_rows("train", 60, 3), HORROR + COMEDY
    teacher, asked = RetrievalTeacher(rows, catalog), [*rows, *make_rows("new", 5, 4), row("empty_t1", "", [], [])]
    similar_BR = (teacher.vectorizer.transform(asked) @ teacher.features_FR).toarray()
    scores_BM = teacher.scores(asked)
    monkeypatch.setattr(retrieval_teacher, "BLOCK_BYTES", 1)  # one row at a time
    np.testing.assert_array_equal(teacher.scores(asked), scores_BM)
    ties = 0
    for one, (places, similar), all_R in zip(asked, teacher._neighbours(asked), similar_BR, strict=True):
        is_own = [parse_conversation_id(r["sample_id"]) == parse_conversation_id(one["sample_id"]) for r in rows]
        other_R = np.where(is_own, 0.0, all_R)
        expected = np.argsort(-other_R, kind="stable")[:NEIGHBOURS]
        expected = expected[other_R[expected] > 0]
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(similar, other_R[expected])
        ties += len(similar) - len(set(similar))
    assert ties > 100


def test_memory_does_not_grow_with_the_rows_asked_for_at_once(monkeypatch):
    rows = make_rows("train", 1000, 3)  # R = 2000
    teacher = RetrievalTeacher(rows, HORROR + COMEDY)
    monkeypatch.setattr(retrieval_teacher, "BLOCK_BYTES", 200_000)
    tracemalloc.start()
    teacher.scores(rows[:256])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000  # 256 rows of 2000 float64 are 4 MB


def test_lists_are_the_best_items():
    rows, catalog = make_rows("train", 30, 3), HORROR + COMEDY
    teacher = RetrievalTeacher(rows, catalog)
    best = [catalog[m] for m in np.argsort(-teacher.scores(rows[:1])[0], kind="stable")[:4]]
    assert teacher.lists(rows[:1], 4, "x") == [best]


def test_cooccurrence_leaves_out_the_queried_conversation():
    rows = [
        row("a_t1", "", ["X"], [("A", "1"), ("B", "1")]),
        row("a_t3", "", ["X"], [("A", "1")]),
        row("b_t1", "", ["X", "Y"], [("A", "1")]),
        row("c_t1", "", ["Y"], [("B", "1")]),
    ]
    counts = Cooccurrence(rows, [("A", "1"), ("B", "1"), ("C", "1")])
    new = row("new_t1", "", ["X", "Y", "Z"], [])
    np.testing.assert_array_equal(counts.mentions(new), [2, 2, 0])  # A in a and b, B in a and c
    # X is in a and b: A in both, B in one; Y is in b and c: A in one, B in one; Z was never named
    expected = [2 / (2 + SHRINKAGE) + 1 / (2 + SHRINKAGE), 1 / (2 + SHRINKAGE) + 1 / (2 + SHRINKAGE), 0]
    np.testing.assert_allclose(counts.together(new), expected)
    # without a itself: X is in b alone, with A
    np.testing.assert_array_equal(counts.mentions(rows[0]), [1, 1, 0])
    np.testing.assert_allclose(counts.together(rows[0]), [1 / (1 + SHRINKAGE), 0, 0])
