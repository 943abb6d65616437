"""Requests that mislead a bag of words: the statement about a genre, film or year matters. KINDS:

negation    `comedies, anything but horror`: the second genre is unwanted
comparison  `like Heat (1995), but newer`: the genres of the film, in the years after it
reversal    the last turn takes back the first: that genre counts neither for nor against a film
quantity    `between 1983 and 1991`, `from 1987 on`: numeric years, rarely the same in two conversations
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from data_prep.sample_data.conversations import GENRE_WORDS, LINES
from data_prep.sample_data.films import FilmTable, Taste

KIND = "request"  # the column
KINDS = ("negation", "comparison", "reversal", "quantity")


def draw_request(table: FilmTable, rng: np.random.Generator) -> tuple[str, Taste, str]:
    """Draw a request.

    Args:
        table: the films.
        rng: of this row.

    Returns:
        Its kind (all equally often), its taste, and the conversation.
    """

    def pick(choices: Sequence[Any]) -> Any:
        return choices[int(rng.integers(len(choices)))]

    def say(line: str) -> str:
        return pick(LINES[line])

    kind = pick(KINDS)
    row = int(rng.integers(len(table.films)))
    genre, other = rng.permutation(pick([film.genres for film in table.films if len(film.genres) > 1]))[:2].tolist()
    turns = [say("genre").format(g=pick(GENRE_WORDS[genre]))]
    if kind == "negation":  # genres that occur together: the second decides between films of the first
        taste = Taste((genre,), unwanted=(other,))
        turns.append(say("negation").format(n=pick(GENRE_WORDS[other])))
        turns = pick((turns, [" ".join(turns)]))
    elif kind == "comparison":
        film = table.films[row]
        is_newer = pick((True, False))
        taste = Taste((), named=(row,), years=(film.year + 1, None) if is_newer else (None, film.year - 1))
        turns = [say("comparison").format(f=film.name, d=say("newer" if is_newer else "older"))]
    elif kind == "reversal":
        taste = Taste((other,))
        turns.append(say("reversal").format(n=pick(GENRE_WORDS[genre]), g=pick(GENRE_WORDS[other])))
    else:
        wording = say("quantity")
        first = int(rng.integers(1950, 2011))
        years = int(rng.integers(5, 16))
        taste = Taste(
            (genre,), years=(first if "{a}" in wording else None, first + years if "{b}" in wording else None)
        )
        turns = [f"{turns[0]} Please {wording.format(a=first, b=first + years)}."]
    turns[0] = say("opener") + turns[0]
    more = "".join(f"SYSTEM: {say('system')}\nUSER: {turn}\n" for turn in turns[1:])
    return kind, taste, f"USER: {turns[0]}\n{more}"
