"""Conversations that state a taste in words: nothing that their ground truth depends on is hidden from a reader, which
benchmarks/studies/sample_ceiling.py proves."""

from collections.abc import Mapping, Sequence

import numpy as np

from convrec.shipped import read_table
from data_prep.sample_data.films import FilmTable, Taste

_PHRASES = read_table(__file__, "phrases.yaml")
GENRE_WORDS: Mapping[str, Sequence[str]] = _PHRASES["genres"]
ERA_WORDS: Mapping[str, Sequence[str]] = _PHRASES["eras"]
LINES: Mapping[str, Sequence[str]] = _PHRASES["lines"]
MAX_TURNS = 5
LONG_SHARE = 0.02  # of conversations with a rambling first turn, as in Reddit posts


def write_conversation(table: FilmTable, taste: Taste, rng: np.random.Generator) -> str:
    """A conversation of one to five turns, the last one the user's, that states `taste` and names its films as seen. Of
    an empty taste it says nothing."""

    def pick(lines: Sequence[str]) -> str:
        return lines[int(rng.integers(len(lines)))]

    def say(kind: str) -> str:
        return pick(LINES[kind])

    def genre_phrase() -> str:
        return " ".join(pick(GENRE_WORDS[genre]) for genre in taste.genres)

    turns_wanted = 1 + int(rng.choice(MAX_TURNS, p=[0.3, 0.2, 0.25, 0.15, 0.1]))
    named = [table.films[row].name for row in taste.named]
    suggested = named.pop() if named and turns_wanted >= 3 and rng.random() < 0.5 else None

    statements = []
    if taste.genres and taste.era and rng.random() < 0.6:
        statements.append(say("genre_era").format(g=genre_phrase(), e=pick(ERA_WORDS[taste.era])))
    else:
        if taste.genres:
            statements.append(say("genre").format(g=genre_phrase()))
        if taste.era:
            statements.append(say("era").format(e=pick(ERA_WORDS[taste.era])))
    statements += [say("liked" if rng.random() < 0.7 else "seen").format(f=name) for name in named]

    if not (taste.genres or taste.era or taste.named):
        statements.append(say("vague"))
    user_turns = min(max(turns_wanted // 2 + turns_wanted % 2 - (suggested is not None), 1), max(len(statements), 1))
    spoken: list[list[str]] = [[] for _ in range(user_turns)]
    for index, statement in enumerate(statements):
        spoken[index * user_turns // len(statements)].append(statement)
    if rng.random() < LONG_SHARE:
        spoken[0][:0] = [LINES["chatter"][i] for i in rng.integers(len(LINES["chatter"]), size=rng.integers(10, 22))]

    lines = []
    if turns_wanted % 2 == 0:
        lines.append(f"SYSTEM: {say('system_opener')}")
    for index, said in enumerate(spoken):
        if index:
            lines.append(f"SYSTEM: {say('system')}")
        opener = say("opener") if index == 0 else ""
        lines.append(f"USER: {opener}{' '.join(said)}")
    if suggested is not None:
        lines.append(f"SYSTEM: {say('suggestion').format(f=suggested)}")
        lines.append(f"USER: {say('suggestion_reply')}")
    lines[-1] = f"{lines[-1]} {say('closer')}".rstrip()
    return "\n".join(lines) + "\n"
