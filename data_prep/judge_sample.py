"""Judge data with a rule that can be learned: does a recommended film have the genre that the user asks for?

    convrec data judge-sample --out data/judge_sample

Writes OUT/pairwise and OUT/pointwise through the converter of data_prep.judge (train, validation, test), from generated
preferences and ratings. The films are real; the label follows from the text alone:

pairwise   one response names the genre asked for, the other does not; the first is better.
pointwise  4: the genre asked for; 3: it and another; 2: no genre at all; 1: two others; 0: another.

`reason` is a short thought for demonstrations: the genre that was asked for.
"""

import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convrec.base.files import folder_written_whole, write_jsonl
from convrec.base.options import command
from data_prep.judge import convert
from data_prep.options.judge import JudgeOptions, JudgeSampleOptions, Mode
from data_prep.sample_data.films import load_films
from data_prep.tables import check_out

NUM_GENRES = 8  # the most frequent of the film table
QUERIES = ("I want a {genre} film tonight.", "Please name a {genre} film.", "Any {genre} film that you like?")
OTHERS = ("Not {other} again.", "I have seen {title}.", "It is for two.", "Something I do not know.")
REASON = "asked for {genre}"


class _Writer:
    """Queries and responses about the film table, drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.films = load_films().films
        counts = Counter(genre for film in self.films for genre in film.genres)
        self.genres = sorted(counts, key=lambda name: (-counts[name], name))[:NUM_GENRES]

    def query(self, genre: str) -> str:
        other = self.rng.choice([name for name in self.genres if name != genre])
        rest = self.rng.choice(OTHERS).format(other=other, title=self.rng.choice(self.films).title)
        parts = [self.rng.choice(QUERIES).format(genre=genre), rest]
        return " ".join(parts if self.rng.random() < 0.5 else parts[::-1])

    def response(self, named: Sequence[str]) -> str:
        """A response that names genres, shuffled, and a film of the first; of none, any film."""
        fitting = [film for film in self.films if not named or named[0] in film.genres]
        genre = f"a {' and '.join(self.rng.sample(named, len(named)))} film" if named else "a film"
        return f"Try {self.rng.choice(fitting).title}, {genre}."


def preferences(count: int, seed: int) -> list[dict[str, Any]]:
    writer = _Writer(seed)
    records = []
    for _ in range(count):
        genre, other = writer.rng.sample(writer.genres, 2)
        responses = {"chosen": writer.response([genre]), "rejected": writer.response([other])}
        records.append({"prompt": writer.query(genre), **responses, "reason": REASON.format(genre=genre)})
    return records


def ratings(count: int, seed: int) -> list[dict[str, Any]]:
    writer = _Writer(seed)
    records = []
    for index in range(count):
        genre, first, second = writer.rng.sample(writer.genres, 3)
        score = index % 5
        named_by_score: Sequence[list[str]] = ([first], [first, second], [], [genre, first], [genre])
        response = writer.response(named_by_score[score])
        said = {"prompt": writer.query(genre), "response": response, "helpfulness": score}
        records.append(said | {"reason": REASON.format(genre=genre)})
    return records


def write_sample(out: str | os.PathLike, count: int = 2000, seed: int = 3407) -> Path:
    """`count` preferences and as many ratings, converted, into OUT, which appears whole or not at all."""
    folder = Path(out)
    check_out(folder)
    records_of: dict[Mode, list[dict[str, Any]]] = {
        "pairwise": preferences(count, seed),
        "pointwise": ratings(count, seed),
    }
    with folder_written_whole(folder) as partial:
        for mode, records in records_of.items():
            raw = partial / f"{mode}.jsonl"
            write_jsonl(raw, records)
            convert(JudgeOptions(mode=mode, inputs=[str(raw)], out=str(partial / mode), seed=seed))
    return folder


@command(JudgeSampleOptions)
def main(options: JudgeSampleOptions) -> int:
    print(f"wrote {write_sample(options.out, options.count, options.seed)}")
    return 0
