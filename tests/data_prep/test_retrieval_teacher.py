"""The teacher without a language model: it knows only what it may, and ranks and draws as it says."""

import numpy as np

from convrec.schema import prompt_text
from data_prep.retrieval_teacher import SHRINKAGE, Cooccurrence, RetrievalTeacher, conversation_of

HORROR = [(f"Ghost {i}", str(1980 + i)) for i in range(6)]
COMEDY = [(f"Laughs {i}", str(1990 + i)) for i in range(6)]


def row(sample_id, conversation, seen, truth):
    return {
        "prompt": [{"content": prompt_text(conversation), "role": "user"}],
        "seen_titles": seen,
        "groundtruth_with_release_year": [list(pair) for pair in truth],
        "sample_id": sample_id,
    }


def make_rows(prefix, count, seed):
    """Conversations of two rows each: a taste, a film of that taste, then another one."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        films, word = ((HORROR, "scary haunted"), (COMEDY, "funny jokes"))[index % 2]
        first, second, third = (films[i] for i in rng.choice(len(films), 3, replace=False))
        start = f"USER: I want something {word}, I liked {first[0]} ({first[1]})\n"
        more = start + f"SYSTEM: Try {second[0]} ({second[1]})\nUSER: Seen that, something else {word}?\n"
        rows.append(row(f"{prefix}_{index}_t1", start, [first[0]], [second]))
        rows.append(row(f"{prefix}_{index}_t3", more, [first[0], second[0]], [third, ("Obscure", "1999")]))
    return rows


def test_teacher_never_uses_the_conversation_it_answers():
    rows = make_rows("train", 30, 3)
    catalog = HORROR + COMEDY
    asked = rows[0]
    others = [other for other in rows if conversation_of(other["sample_id"]) != conversation_of(asked["sample_id"])]
    changed = [{**r, "groundtruth_with_release_year": [list(COMEDY[0])]} if r in rows[:2] else r for r in rows]
    first, second = (RetrievalTeacher(table, catalog).scores([asked]) for table in (rows, changed))
    np.testing.assert_array_equal(first, second)
    # nor do its own words count, but for the document frequencies of TF-IDF
    assert RetrievalTeacher(others, catalog).lists([asked], 3, "x") == RetrievalTeacher(rows, catalog).lists(
        [asked], 3, "x"
    )


def test_lists_are_the_best_items_or_drawn_around_them():
    rows, catalog = make_rows("train", 30, 3), HORROR + COMEDY
    teacher = RetrievalTeacher(rows, catalog)
    scores = teacher.scores(rows[:1])[0]
    best = teacher.lists(rows[:1], 4, "x")[0]
    assert best == [catalog[m] for m in np.argsort(-scores, kind="stable")[:4]]
    assert teacher.lists(rows[:1], 4, "x", noise=1e-6, seed=1)[0] == best
    # the first of a list is drawn from softmax(score / noise)
    firsts = [items[0] for items in teacher.lists(rows[:1], 4, "x", copies=2000, noise=0.5, seed=1)]
    expected = np.exp(scores / 0.5) / np.exp(scores / 0.5).sum()
    shares = [firsts.count(pair) / 2000 for pair in catalog]
    np.testing.assert_allclose(shares, expected, atol=0.04)


def test_cooccurrence_counts_conversations_without_the_one_asked_about():
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
