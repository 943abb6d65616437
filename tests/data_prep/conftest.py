"""Conversations about two kinds of films, which a retrieval teacher can tell apart by words and titles."""

import numpy as np

from convrec.data.schema import prompt_text

HORROR = [(f"Ghost {i}", str(1980 + i)) for i in range(6)]
COMEDY = [(f"Laughs {i}", str(1990 + i)) for i in range(6)]


def row(sample_id, conversation, seen, truth, num_items=20, dated=True):
    return {
        "prompt": [{"content": prompt_text(conversation, num_items, dated=dated), "role": "user"}],
        "seen_titles": seen,
        "groundtruth_with_release_year": [[title, str(year)] for title, year in truth],
        "sample_id": sample_id,
    }


def make_rows(prefix, count, seed, kinds=(HORROR, COMEDY), num_items=20, outside=(("Obscure", 1999),)):
    """Conversations of two rows each: a taste, a film of that taste, then another one and those no catalog has.
    Kinds whose years are "" have none."""
    rng, dated = np.random.default_rng(seed), kinds[0][0][1] != ""
    rows = []

    def name(film):
        return f"{film[0]} ({film[1]})" if dated else film[0]

    for index in range(count):
        films, word = kinds[index % 2], ("scary haunted", "funny jokes")[index % 2]
        first, second, third = (films[i] for i in rng.choice(len(films), 3, replace=False))
        start = f"USER: I want something {word}, I liked {name(first)}\n"
        more = start + f"SYSTEM: Try {name(second)}\nUSER: Seen that, something else {word}?\n"
        rows.append(row(f"{prefix}_{index}_t1", start, [first[0]], [second], num_items, dated))
        rows.append(row(f"{prefix}_{index}_t3", more, [first[0], second[0]], [third, *outside], num_items, dated))
    return rows
