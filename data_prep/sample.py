"""The embedded sample data: conversations about real films with generated tastes, in the released columns.

    convrec data sample --out data/sample

How a row is made (data_prep/sample_data/films.py defines the utility):
- A taste is drawn (one or two genres, usually an era, up to three films that suit it) and put into words.
- The ground truth is 1-5 films drawn from softmax(utility / GROUND_TRUTH_TEMPERATURE), without the films named.
- The demonstration is the list of an imperfect teacher that never sees the ground truth: it gives tastes less weight,
  has fixed wrong opinions about films, and is noisy in which films it lists, but not in their order. RL can correct the
  first two, less random sampling the third.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import atomic_write_folder
from convrec.base.options import command
from convrec.base.progress import Progress
from convrec.data.schema import CATALOG_SCHEMA, RL_SCHEMA, SFT_SCHEMA, TRUTH, format_prompt, get_truth
from convrec.lists.settings import ListSettings, make_matcher
from convrec.titles.catalog import load_catalog
from data_prep.options.sample import SampleOptions
from data_prep.questions import add_questions
from data_prep.sample_data.conversations import write_conversation
from data_prep.sample_data.films import ERAS, FilmTable, Taste, load_films
from data_prep.sample_data.hard import KIND, draw_request
from data_prep.tables import check_out, message

REQUESTS = ("plain", "hard")
PLAIN, HARD = REQUESTS
VAGUE = "vague"  # first turns say little, for models that may ask
COUNTS = {"train": 4000, "validation": 300, "test": 500}
SPLITS = tuple(COUNTS)
GROUND_TRUTH_TEMPERATURE = 0.6
GROUND_TRUTH_SIZES = (0.35, 0.25, 0.2, 0.1, 0.1)  # probabilities of 1, 2, ... films
TEACHER_TASTE = 0.5  # weight that the teacher gives to the affinity
TEACHER_OPINION = 1.0  # standard deviation of its fixed wrong opinions about films
TEACHER_NOISE = 0.25  # standard deviation of the noise in each list
TEACHER_SEED = 11  # every sample has the same teacher


def draw_taste(table: FilmTable, rng: np.random.Generator) -> Taste:
    """Draw one or two genres that occur together, usually an era, and up to three films; 5 % only name films.

    Args:
        table: the films.
        rng: advanced by a number of draws that depends on the taste.
    """
    genres = [table.genres[rng.integers(len(table.genres))]]
    if rng.random() < 0.15:
        together = [film.genres for film in table.films if genres[0] in film.genres and len(film.genres) > 1]
        others = [genre for genre in together[rng.integers(len(together))] if genre != genres[0]]
        genres.append(others[0])
    era = str(rng.choice(list(ERAS))) if rng.random() < 0.6 else ""
    taste = Taste(tuple(genres), era)
    names_only = rng.random() < 0.05
    count = int(rng.integers(2, 4)) if names_only else int(rng.choice(4, p=[0.5, 0.25, 0.15, 0.1]))
    named = tuple(draw_films(table, table.utility(taste), count, (), rng))
    return Taste((), era, named) if names_only else Taste(taste.genres, era, named)


def draw_films(
    table: FilmTable, utility_F: np.ndarray, count: int, named: tuple[int, ...], rng: np.random.Generator
) -> list[int]:
    """Draw rows of the table from softmax(utility / temperature).

    Args:
        table: the films.
        utility_F: of each film.
        count: number of rows to draw.
        named: rows of films that are left out, with their namesakes.
        rng: draws one number per film.

    Returns:
        Different rows, most likely first; no two are namesakes.
    """
    order = np.argsort(-(utility_F / GROUND_TRUTH_TEMPERATURE + rng.gumbel(size=len(utility_F))))
    return select_unseen(table, order, count, named)


def draw_teacher_list(table: FilmTable, taste: Taste, num_items: int, rng: np.random.Generator) -> list[int]:
    """Draw the imperfect teacher's list.

    Noise decides which films are in the list, not their order: from lists in a stable order, a tiny model soon learns
    not to repeat titles.

    Args:
        table: the films.
        taste: the teacher's view of it is distorted, the same way for every conversation.
        num_items: length of the list.
        rng: draws one number per film.

    Returns:
        Rows, best first, without the films that the taste names.
    """
    opinion_F = np.random.default_rng(TEACHER_SEED).normal(0, TEACHER_OPINION, len(table.films))
    noise_F = rng.normal(0, TEACHER_NOISE, len(table.films))
    score_F = TEACHER_TASTE * table.affinity(taste) + table.log_popularity_F + opinion_F
    chosen = select_unseen(table, np.argsort(-(score_F + noise_F)), num_items, taste.named)
    return sorted(chosen, key=lambda row: -score_F[row])


def draw_vague_taste(taste: Taste, rng: np.random.Generator) -> Taste:
    """Draw the part of a taste that a vague first turn states: nothing, the genres or the era.

    Args:
        taste: one that only names films stays whole.
        rng: not used for such a taste.
    """
    if not taste.genres:
        return taste
    return (Taste(()), Taste(taste.genres), Taste((), taste.era))[int(rng.choice(3, p=(0.5, 0.25, 0.25)))]


def make_rows(table: FilmTable, split: str, count: int, seed: int, num_items: int, requests: str = PLAIN) -> list[dict]:
    """Make rows with completions; row i of a split depends on the seed and the kind of requests only.

    Args:
        table: the films.
        split: one of SPLITS.
        count: number of rows.
        seed: random seed of the sample.
        num_items: length of the demonstrations, and the number that prompts ask for.
        requests: PLAIN, VAGUE (the first turn states a part of the taste) or HARD (of sample_data.hard, with a column
            KIND).

    Returns:
        Rows of the released columns.
    """
    rows = []
    for index in Progress(range(count), desc=split, unit="row"):
        rng = np.random.default_rng([seed, SPLITS.index(split), index])
        if requests == HARD:
            kind, taste, conversation = draw_request(table, rng)
            stated = taste
            extra_columns = {KIND: kind}
        else:
            taste = draw_taste(table, rng)
            extra_columns = {}
            stated = draw_vague_taste(taste, rng) if requests == VAGUE else taste
            conversation = write_conversation(table, stated, rng)
        size = 1 + int(rng.choice(len(GROUND_TRUTH_SIZES), p=GROUND_TRUTH_SIZES))
        truth = draw_films(table, table.utility(taste), size, stated.named, rng)
        films = [table.films[row] for row in draw_teacher_list(table, stated, num_items, rng)]
        rows.append(
            {
                "prompt": message("user", format_prompt(conversation, num_items)),
                "seen_titles": [table.films[row].title for row in stated.named],
                TRUTH: [[table.films[row].title, str(table.films[row].year)] for row in truth],
                "sample_id": f"sample_{split}_{index:05d}",
                "completion": message("assistant", "\n".join(film.name for film in films)),
                **extra_columns,
            }
        )
    return rows


def catalog_rows(table: FilmTable, train_rows: list[dict]) -> list[dict]:
    """Return the catalog with each film's genres and mentions.

    Args:
        table: the films.
        train_rows: whose ground truths are counted.
    """
    mentions = Counter(pair for row in train_rows for pair in get_truth(row))
    return [film._asdict() | {"mentions": mentions[film.title, str(film.year)]} for film in table.films]


def write_sample(
    out: str | os.PathLike,
    *,
    seed: int = 3407,
    counts: Mapping[str, int] = MappingProxyType(COUNTS),
    num_items: int = ListSettings.num_items,
    requests: str = PLAIN,
    overwrite: bool = False,
    ask: Sequence[str] = (),
) -> Path:
    """Write the six tables of the sample data; the folder appears as a whole or not at all.

    Args:
        out: folder to write.
        seed: random seed of the conversations and tastes.
        counts: rows of each split.
        num_items: items that a prompt asks for.
        requests: PLAIN or HARD.
        overwrite: whether an existing `out` is replaced.
        ask: attributes that demonstrations ask about; first turns are then vague. () for none.

    Returns:
        The folder.

    Raises:
        UserError: An argument is out of range, or `out` exists.
    """
    if ask and requests == HARD:
        raise UserError(
            "sample.ask-hard-requests",
            "--ask cannot be combined with --requests hard, whose first turns say everything; give one of them",
        )
    out = Path(out)
    table = load_films()
    tables = {*SPLITS, "sft_train", "sft_validation", "catalog"}
    check_out(out, overwrite, {f"{name}.parquet" for name in tables})
    if not 1 <= num_items <= 100:
        raise UserError("sample.num-items-out-of-range", f"--num-items {num_items}: out of range; give 1 to 100")
    for split in SPLITS:
        if counts[split] < 1:
            raise UserError("sample.empty-split", f"--{split} {counts[split]}: too few; give at least one row")
    with atomic_write_folder(out) as partial:
        for split in SPLITS:
            rows = make_rows(table, split, counts[split], seed, num_items, VAGUE if ask else requests)
            kind = [pa.field(KIND, pa.string())] if requests == HARD else []
            rl, sft = (pa.schema([*schema, *kind]) for schema in (RL_SCHEMA, SFT_SCHEMA))
            pq.write_table(pa.Table.from_pylist(rows, rl), partial / f"{split}.parquet")
            if split != "test":
                pq.write_table(pa.Table.from_pylist(rows, sft), partial / f"sft_{split}.parquet")
            if split == "train":
                extra_fields = [pa.field("mentions", pa.int32()), pa.field("genres", pa.list_(pa.string()))]
                catalog_schema = pa.schema([*CATALOG_SCHEMA, *extra_fields])
                catalog = pa.Table.from_pylist(catalog_rows(table, rows), catalog_schema)
                pq.write_table(catalog, partial / "catalog.parquet")
        if ask:
            matcher = make_matcher(load_catalog(partial / "catalog.parquet"), ListSettings())
            add_questions(partial, ask, matcher, num_items, seed)
    return out


def select_unseen(table: FilmTable, order: np.ndarray, count: int, named: tuple[int, ...]) -> list[int]:
    """Select the first rows of an order that are not named and not namesakes of named or earlier films.

    Args:
        table: the films.
        order: all rows, best first.
        count: number of rows to select; fewer if there are not so many.
        named: rows of films to leave out.
    """
    taken = {row for film in named for row in table.find_namesakes(film)}
    rows: list[int] = []
    for row in map(int, order):
        if len(rows) == count:
            break
        if row not in taken:
            rows.append(row)
            taken.update(table.find_namesakes(row))
    return rows


@command(SampleOptions)
def main(options: SampleOptions) -> int:
    """Write the sample data; return the exit status."""
    counts = {"train": options.train, "validation": options.validation, "test": options.test}
    out = write_sample(
        options.out,
        seed=options.seed,
        num_items=options.num_items,
        requests=options.requests,
        ask=options.ask or (),
        overwrite=options.overwrite,
        counts=counts,
    )
    print(f"wrote {out}: {', '.join(f'{count} {split}' for split, count in counts.items())} rows")
    return 0
