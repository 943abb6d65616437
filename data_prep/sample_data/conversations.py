"""Conversations that state a taste in words: nothing that their ground truth depends on is hidden from a reader, which
benchmarks/studies/sample_ceiling.py proves."""

from collections.abc import Mapping, Sequence

import numpy as np

from convrec.base.shipped import read_table
from data_prep.sample_data.films import FilmTable, Taste

_PHRASES = read_table(__file__, "phrases.yaml")
GENRE_WORDS: Mapping[str, Sequence[str]] = _PHRASES["genres"]
ERA_WORDS: Mapping[str, Sequence[str]] = _PHRASES["eras"]
LINES: Mapping[str, Sequence[str]] = _PHRASES["lines"]
MAX_TURNS = 5
LONG_SHARE = 0.02  # of conversations with a rambling first turn, as in Reddit posts


def write_conversation(table: FilmTable, taste: Taste, rng: np.random.Generator) -> str:
    """A conversation of one to five turns, the last one the user's, that states `taste` and names its films as seen. Of
    an empty taste it says nothing.

    The order of the draws is part of the sample data: another one makes other conversations of the same seed.
    """
    wordings = _Wordings(rng)
    turns_wanted = 1 + int(rng.choice(MAX_TURNS, p=[0.3, 0.2, 0.25, 0.15, 0.1]))
    named = [table.films[row].name for row in taste.named]
    suggested = None
    if named and turns_wanted >= 3 and rng.random() < 0.5:
        suggested = named.pop()

    statements = _state_taste(taste, wordings)
    for name in named:
        kind = "liked" if rng.random() < 0.7 else "seen"
        statements.append(wordings.draw(kind).format(f=name))
    if not (taste.genres or taste.era or taste.named):
        statements.append(wordings.draw("vague"))

    turns = _spread_over_turns(statements, _count_user_turns(turns_wanted, suggested, statements))
    if rng.random() < LONG_SHARE:
        turns[0][:0] = wordings.draw_chatter()
    lines = _write_turns(turns, wordings, system_begins=turns_wanted % 2 == 0)
    if suggested is not None:
        lines.append(f"SYSTEM: {wordings.draw('suggestion').format(f=suggested)}")
        lines.append(f"USER: {wordings.draw('suggestion_reply')}")
    lines[-1] = f"{lines[-1]} {wordings.draw('closer')}".rstrip()
    return "\n".join(lines) + "\n"


class _Wordings:
    """What phrases.yaml has, drawn with the conversation's generator."""

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
        """10 to 21 sentences that say nothing."""
        count = self.rng.integers(10, 22)
        return [LINES["chatter"][index] for index in self.rng.integers(len(LINES["chatter"]), size=count)]


def _state_taste(taste: Taste, wordings: _Wordings) -> list[str]:
    """Sentences that say the genres and the era, sometimes both in one; none where the taste has neither."""
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


def _count_user_turns(turns_wanted: int, suggested: str | None, statements: Sequence[str]) -> int:
    """How many turns of the user have statements: every second turn, without the reply to a suggestion, none empty."""
    user_turns = (turns_wanted + 1) // 2
    if suggested is not None:
        user_turns -= 1
    return min(max(user_turns, 1), max(len(statements), 1))


def _spread_over_turns(statements: Sequence[str], user_turns: int) -> list[list[str]]:
    """The statements of each turn, in their order and as evenly as they can be."""
    turns: list[list[str]] = [[] for _ in range(user_turns)]
    for index, statement in enumerate(statements):
        turns[index * user_turns // len(statements)].append(statement)
    return turns


def _write_turns(turns: Sequence[Sequence[str]], wordings: _Wordings, system_begins: bool) -> list[str]:
    """Lines of the user's turns, and of the system's between them."""
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
