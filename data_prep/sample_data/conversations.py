"""Write conversations that state a taste in words.

Everything that the ground truth depends on is in the text, as benchmarks/studies/sample_ceiling.py shows.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from convrec.base.shipped import read_table
from data_prep.sample_data.films import FilmTable, Taste

_PHRASES = read_table(__file__, "phrases.yaml")
GENRE_WORDS: Mapping[str, Sequence[str]] = _PHRASES["genres"]
ERA_WORDS: Mapping[str, Sequence[str]] = _PHRASES["eras"]
LINES: Mapping[str, Sequence[str]] = _PHRASES["lines"]
MAX_TURNS = 5
LONG_SHARE = 0.02  # share of conversations with a rambling first turn, as in Reddit posts


def write_conversation(table: FilmTable, taste: Taste, rng: np.random.Generator) -> str:
    """Write a conversation of one to five turns that states a taste and names its films as seen.

    It ends with the user's turn. The order of the random draws is part of the sample data: another order would give
    other conversations for the same seed.

    Args:
        table: the films.
        taste: an empty one gives a vague request.
        rng: of this row.
    """
    wordings = _Wordings(rng)
    num_turns = 1 + int(rng.choice(MAX_TURNS, p=[0.3, 0.2, 0.25, 0.15, 0.1]))
    named = [table.films[row].name for row in taste.named]
    suggested = None
    if named and num_turns >= 3 and rng.random() < 0.5:
        suggested = named.pop()

    statements = _state_taste(taste, wordings)
    for name in named:
        kind = "liked" if rng.random() < 0.7 else "seen"
        statements.append(wordings.draw(kind).format(f=name))
    if not (taste.genres or taste.era or taste.named):
        statements.append(wordings.draw("vague"))

    turns = _spread_over_turns(statements, _count_user_turns(num_turns, suggested, statements))
    if rng.random() < LONG_SHARE:
        turns[0][:0] = wordings.draw_chatter()
    lines = _write_turns(turns, wordings, system_begins=num_turns % 2 == 0)
    if suggested is not None:
        lines.append(f"SYSTEM: {wordings.draw('suggestion').format(f=suggested)}")
        lines.append(f"USER: {wordings.draw('suggestion_reply')}")
    lines[-1] = f"{lines[-1]} {wordings.draw('closer')}".rstrip()
    return "\n".join(lines) + "\n"


class _Wordings:
    """Draw phrases of phrases.yaml with the conversation's random generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def pick(self, lines: Sequence[str]) -> str:
        return lines[int(self.rng.integers(len(lines)))]

    def draw(self, kind: str) -> str:
        return self.pick(LINES[kind])

    def draw_genres(self, taste: Taste) -> str:
        return " ".join(self.pick(GENRE_WORDS[genre]) for genre in taste.genres)

    def draw_era(self, taste: Taste) -> str:
        return self.pick(ERA_WORDS[taste.era])

    def draw_chatter(self) -> list[str]:
        """Draw 10 to 21 sentences without information."""
        count = self.rng.integers(10, 22)
        return [LINES["chatter"][index] for index in self.rng.integers(len(LINES["chatter"]), size=count)]


def _state_taste(taste: Taste, wordings: _Wordings) -> list[str]:
    """Return sentences that state genres and era, sometimes both in one; none if the taste has neither."""
    if taste.genres and taste.era and wordings.rng.random() < 0.6:
        sentence = wordings.draw("genre_era")
        genres = wordings.draw_genres(taste)
        return [sentence.format(g=genres, e=wordings.draw_era(taste))]
    statements = []
    if taste.genres:
        statements.append(wordings.draw("genre").format(g=wordings.draw_genres(taste)))
    if taste.era:
        statements.append(wordings.draw("era").format(e=wordings.draw_era(taste)))
    return statements


def _count_user_turns(num_turns: int, suggested: str | None, statements: Sequence[str]) -> int:
    """Count the user's turns with statements: every second turn except for the reply to a suggestion."""
    user_turns = (num_turns + 1) // 2
    if suggested is not None:
        user_turns -= 1
    return min(max(user_turns, 1), max(len(statements), 1))


def _spread_over_turns(statements: Sequence[str], user_turns: int) -> list[list[str]]:
    """Divide the statements among the turns as evenly as possible, in order."""
    turns: list[list[str]] = [[] for _ in range(user_turns)]
    for index, statement in enumerate(statements):
        turns[index * user_turns // len(statements)].append(statement)
    return turns


def _write_turns(turns: Sequence[Sequence[str]], wordings: _Wordings, system_begins: bool) -> list[str]:
    """Write the user's turns with turns of the system between them, as lines."""
    lines = []
    if system_begins:
        lines.append(f"SYSTEM: {wordings.draw('system_opener')}")
    for index, statements in enumerate(turns):
        opener = ""
        if index == 0:
            opener = wordings.draw("opener")
        else:
            lines.append(f"SYSTEM: {wordings.draw('system')}")
        lines.append(f"USER: {opener}{' '.join(statements)}")
    return lines
