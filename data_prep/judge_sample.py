"""Generate judge data with a learnable rule: does the recommended film have the genre that the user asks for?

    convrec data judge-sample --out data/judge_sample

Writes generated preferences and ratings to OUT/pairwise and OUT/pointwise (train, validation, test) with the converter
of data_prep.judge. The films are real; the label follows from the text alone:

pairwise   one response names the requested genre, the other does not; the first is better.
pointwise  4: the requested genre; 3: that and another; 2: no genre at all; 1: two others; 0: another.

`reason` is a short thought for demonstrations: the requested genre.
"""

import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convrec.base.files import atomic_write_folder, write_jsonl
from convrec.base.options import command
from data_prep.judge import convert
from data_prep.options.judge import JudgeOptions, JudgeSampleOptions, Mode
from data_prep.sample_data.films import load_films
from data_prep.tables import check_out

NUM_GENRES = 8  # the most frequent genres of the film table
QUERIES = ("I want a {genre} film tonight.", "Please name a {genre} film.", "Any {genre} film that you like?")
OTHERS = ("Not {other} again.", "I have seen {title}.", "It is for two.", "Something I do not know.")
REASON = "asked for {genre}"


class _Writer:
    """Write random queries and responses about the film table."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.films = load_films().films
        counts = Counter(genre for film in self.films for genre in film.genres)
        self.genres = sorted(counts, key=lambda name: (-counts[name], name))[:NUM_GENRES]

    def write_query(self, genre: str) -> str:
        other = self.rng.choice([name for name in self.genres if name != genre])
        rest = self.rng.choice(OTHERS).format(other=other, title=self.rng.choice(self.films).title)
        parts = [self.rng.choice(QUERIES).format(genre=genre), rest]
        return " ".join(parts if self.rng.random() < 0.5 else parts[::-1])

    def write_response(self, named: Sequence[str]) -> str:
        """Write a response that names these genres in random order and a film of the first, or of any genre."""
        fitting = [film for film in self.films if not named or named[0] in film.genres]
        genre = f"a {' and '.join(self.rng.sample(named, len(named)))} film" if named else "a film"
        return f"Try {self.rng.choice(fitting).title}, {genre}."


def make_preferences(count: int, seed: int) -> list[dict[str, Any]]:
    """Make preferences, each between two responses to one query.

    Args:
        count: their number.
        seed: random seed of queries and responses.

    Returns:
        Records with `prompt`, `chosen`, `rejected` and `reason`.
    """
    writer = _Writer(seed)
    records = []
    for _ in range(count):
        genre, other = writer.rng.sample(writer.genres, 2)
        responses = {"chosen": writer.write_response([genre]), "rejected": writer.write_response([other])}
        records.append({"prompt": writer.write_query(genre), **responses, "reason": REASON.format(genre=genre)})
    return records


def make_ratings(count: int, seed: int) -> list[dict[str, Any]]:
    """Make ratings from 0 to 4, each equally often.

    Args:
        count: their number.
        seed: random seed of queries and responses.

    Returns:
        Records with `prompt`, `response`, `helpfulness` and `reason`.
    """
    writer = _Writer(seed)
    records = []
    for index in range(count):
        genre, first, second = writer.rng.sample(writer.genres, 3)
        score = index % 5
        named_by_score: Sequence[list[str]] = ([first], [first, second], [], [genre, first], [genre])
        response = writer.write_response(named_by_score[score])
        record = {"prompt": writer.write_query(genre), "response": response, "helpfulness": score}
        records.append(record | {"reason": REASON.format(genre=genre)})
    return records


def write_sample(out: str | os.PathLike, count: int = 2000, seed: int = 3407) -> Path:
    """Write preferences and as many ratings, converted.

    Args:
        out: a new folder, which appears as a whole or not at all; it gets pairwise/ and pointwise/.
        count: number of preferences, and of ratings.
        seed: random seed of both.

    Returns:
        The folder.

    Raises:
        UserError: the folder exists, or cannot be created.
    """
    folder = Path(out)
    check_out(folder)
    records_by_mode: dict[Mode, list[dict[str, Any]]] = {
        "pairwise": make_preferences(count, seed),
        "pointwise": make_ratings(count, seed),
    }
    with atomic_write_folder(folder) as partial:
        for mode, records in records_by_mode.items():
            raw = partial / f"{mode}.jsonl"
            write_jsonl(raw, records)
            convert(JudgeOptions(mode=mode, inputs=[str(raw)], out=str(partial / mode), seed=seed))
    return folder


@command(JudgeSampleOptions)
def main(options: JudgeSampleOptions) -> int:
    """Write sample data for judges; return the exit status."""
    print(f"wrote {write_sample(options.out, options.count, options.seed)}")
    return 0
