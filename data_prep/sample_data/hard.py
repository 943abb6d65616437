"""Requests whose words alone mislead: what is said of a genre, film or year matters, not that it is named. KINDS:

negation    `comedies, anything but horror`: the second genre is unwanted
comparison  `like Heat (1995), but newer`: the film's genres, of the years after it
reversal    the last turn takes the first back: its genre counts for nothing, neither for nor against
quantity    `between 1983 and 1991`, `from 1987 on`: years that are counted, seldom the same in two conversations
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from data_prep.sample_data.conversations import GENRE_LINES, GENRE_WORDS, OPENERS, SYSTEM_LINES
from data_prep.sample_data.films import FilmTable, Taste

KIND = "request"  # the column
KINDS = ("negation", "comparison", "reversal", "quantity")
NEGATION_LINES = (
    "Anything but {n}.",
    "But no {n} films.",
    "I can't stand {n} movies.",
    "Nothing {n}, please.",
)
COMPARISON_LINES = ("Something like {f}, but {d}.", "I loved {f}. What is like it and {d}?", "Like {f}, only {d}.")
NEWER, OLDER = ("newer", "more recent", "made later"), ("older", "less recent", "made earlier")
REVERSAL_LINES = (
    "On second thought, forget about {n} films. I would rather have something {g}.",
    "No wait, not {n} after all. Make it {g}, please.",
    "My friends say no to {n} tonight. Let us take {g} movies.",
)
QUANTITY_LINES: tuple[str, ...] = ("made between {a} and {b}", "from {a} to {b}", "made in {a} or later", "from {a} on")
QUANTITY_LINES += ("no older than {a}", "made in {b} or earlier", "up to {b}", "no newer than {b}")


def draw_request(table: FilmTable, rng: np.random.Generator) -> tuple[str, Taste, str]:
    """(kind, taste, conversation), each kind as often."""

    def pick(choices: Sequence[Any]) -> Any:
        return choices[int(rng.integers(len(choices)))]

    kind, row = pick(KINDS), int(rng.integers(len(table.films)))
    genre, other = rng.permutation(pick([film.genres for film in table.films if len(film.genres) > 1]))[:2].tolist()
    turns = [pick(GENRE_LINES).format(g=pick(GENRE_WORDS[genre]))]
    if kind == "negation":  # of two genres that films have together: the second decides between films of the first
        taste = Taste((genre,), unwanted=(other,))
        turns.append(pick(NEGATION_LINES).format(n=pick(GENRE_WORDS[other])))
        turns = pick((turns, [" ".join(turns)]))
    elif kind == "comparison":
        film, is_newer = table.films[row], pick((True, False))
        taste = Taste((), named=(row,), years=(film.year + 1, None) if is_newer else (None, film.year - 1))
        turns = [pick(COMPARISON_LINES).format(f=film.name, d=pick(NEWER if is_newer else OLDER))]
    elif kind == "reversal":
        taste = Taste((other,))
        turns.append(pick(REVERSAL_LINES).format(n=pick(GENRE_WORDS[genre]), g=pick(GENRE_WORDS[other])))
    else:
        said, first, years = pick(QUANTITY_LINES), int(rng.integers(1950, 2011)), int(rng.integers(5, 16))
        taste = Taste((genre,), years=(first if "{a}" in said else None, first + years if "{b}" in said else None))
        turns = [f"{turns[0]} Please {said.format(a=first, b=first + years)}."]
    turns[0] = pick(OPENERS) + turns[0]
    return kind, taste, f"USER: {turns[0]}\n" + "".join(f"SYSTEM: {pick(SYSTEM_LINES)}\nUSER: {t}\n" for t in turns[1:])
