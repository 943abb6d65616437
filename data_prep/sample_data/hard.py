"""Requests whose words alone mislead: what is said of a genre, film or year matters, not that it is named. KINDS:

negation    `comedies, anything but horror`: the second genre is unwanted
comparison  `like Heat (1995), but newer`: the film's genres, of the years after it
reversal    the last turn takes the first back: its genre counts for nothing, neither for nor against
quantity    `between 1983 and 1991`, `from 1987 on`: years that are counted, seldom the same in two conversations
"""

from collections.abc import Callable, Sequence

import numpy as np

from data_prep.sample_data.conversations import GENRE_LINES, GENRE_WORDS, OPENERS, SYSTEM_LINES
from data_prep.sample_data.films import FilmTable, Taste

KIND = "request"  # the column
NEGATION_LINES = (
    "Anything but {n}.",
    "Just no {n} films, please.",
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
QUANTITY_LINES = {  # first and last year there are -> how it is said
    (True, True): ("made between {a} and {b}", "from {a} to {b}", "no older than {a} and no newer than {b}"),
    (True, False): ("made in {a} or later", "from {a} on", "no older than {a}"),
    (False, True): ("made in {b} or earlier", "up to {b}", "no newer than {b}"),
}


def draw_request(table: FilmTable, rng: np.random.Generator) -> tuple[str, Taste, str]:
    """(kind, taste, conversation), each kind as often."""
    kind = list(KINDS)[int(rng.integers(len(KINDS)))]
    taste, turns = KINDS[kind](table, rng)
    turns[0] = _pick(OPENERS, rng) + turns[0]
    between = f"\nSYSTEM: {_pick(SYSTEM_LINES, rng)}\nUSER: "
    return kind, taste, f"USER: {between.join(turns)}\n"


def _pick(choices: Sequence[str], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]


def _two_genres(table: FilmTable, rng: np.random.Generator) -> tuple[str, str]:
    """Two that films have together, so that the second decides between films of the first."""
    both = [film.genres for film in table.films if len(film.genres) > 1]
    first, second = rng.permutation(both[int(rng.integers(len(both)))])[:2]
    return str(first), str(second)


def _asks_for(genre: str, rng: np.random.Generator) -> str:
    return _pick(GENRE_LINES, rng).format(g=_pick(GENRE_WORDS[genre], rng))


def _negation(table: FilmTable, rng: np.random.Generator) -> tuple[Taste, list[str]]:
    wanted, unwanted = _two_genres(table, rng)
    parts = [_asks_for(wanted, rng), _pick(NEGATION_LINES, rng).format(n=_pick(GENRE_WORDS[unwanted], rng))]
    return Taste((wanted,), unwanted=(unwanted,)), [" ".join(parts)] if rng.random() < 0.5 else parts


def _comparison(table: FilmTable, rng: np.random.Generator) -> tuple[Taste, list[str]]:
    row = int(rng.integers(len(table.films)))
    film, is_newer = table.films[row], bool(rng.random() < 0.5)
    years = (film.year + 1, None) if is_newer else (None, film.year - 1)
    said = _pick(COMPARISON_LINES, rng).format(f=film.name, d=_pick(NEWER if is_newer else OLDER, rng))
    return Taste((), named=(row,), years=years), [said]


def _reversal(table: FilmTable, rng: np.random.Generator) -> tuple[Taste, list[str]]:
    first, wanted = _two_genres(table, rng)
    words = {"n": _pick(GENRE_WORDS[first], rng), "g": _pick(GENRE_WORDS[wanted], rng)}
    return Taste((wanted,)), [_asks_for(first, rng), _pick(REVERSAL_LINES, rng).format(**words)]


def _quantity(table: FilmTable, rng: np.random.Generator) -> tuple[Taste, list[str]]:
    genre = table.genres[int(rng.integers(len(table.genres)))]
    first = int(rng.integers(1950, 2011))
    bounds = list(QUANTITY_LINES)[int(rng.integers(len(QUANTITY_LINES)))]
    years = (first if bounds[0] else None, first + int(rng.integers(5, 16)) if bounds[1] else None)
    said = f"{_asks_for(genre, rng)} Please {_pick(QUANTITY_LINES[bounds], rng).format(a=years[0], b=years[1])}."
    return Taste((genre,), years=years), [said]


KINDS: dict[str, Callable[[FilmTable, np.random.Generator], tuple[Taste, list[str]]]] = {
    "negation": _negation,
    "comparison": _comparison,
    "reversal": _reversal,
    "quantity": _quantity,
}
