"""The embedded sample data: conversations about real films with generated tastes, in the released columns.

    convrec data sample --out data/sample

How a row comes about (data_prep/sample_data/films.py has the utility):
- a taste is drawn (one or two genres, mostly an era, up to three films by the taste itself) and put into words;
- the ground truth is 1-5 films drawn from softmax(utility / GROUND_TRUTH_TEMPERATURE) without the films named;
- the demonstration is the list of an imperfect teacher, who never sees the ground truth: tastes count less for it, it
  has fixed wrong opinions about films, and it is noisy in what it lists, not in how it orders it. RL can fix the
  first two, sampling less the third.
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
from convrec.base.files import folder_written_whole
from convrec.base.options import command
from convrec.base.progress import Progress
from convrec.data.schema import CATALOG_SCHEMA, RL_SCHEMA, SFT_SCHEMA, TRUTH, get_truth, prompt_text
from convrec.lists.settings import ListSettings, make_matcher
from convrec.titles.catalog import load_catalog
from data_prep.options.sample import SampleOptions
from data_prep.questions import add_questions
from data_prep.sample_data.conversations import write_conversation
from data_prep.sample_data.films import ERAS, FilmTable, Taste, load_films
from data_prep.sample_data.hard import KIND, draw_request
from data_prep.tables import check_out, message

PLAIN, HARD = REQUESTS = ("plain", "hard")
LITTLE = "little"  # requests of first turns where the model may ask
COUNTS = {"train": 4000, "validation": 300, "test": 500}
SPLITS = tuple(COUNTS)
GROUND_TRUTH_TEMPERATURE = 0.6
GROUND_TRUTH_SIZES = (0.35, 0.25, 0.2, 0.1, 0.1)  # of 1, 2, ... films
TEACHER_TASTE = 0.5  # what is left of a taste's affinity in the teacher's mind
TEACHER_OPINION = 1.0  # standard deviation of its fixed wrong opinion about each film
TEACHER_NOISE = 0.25  # and of the noise of each list
TEACHER_SEED = 11  # one teacher for every sample


def draw_taste(table: FilmTable, rng: np.random.Generator) -> Taste:
    """One or two genres that occur together, mostly an era, and up to three films; one in twenty only names films."""
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
    """`count` rows of the table from softmax(utility / temperature), no two namesakes, none of `named`."""
    order = np.argsort(-(utility_F / GROUND_TRUTH_TEMPERATURE + rng.gumbel(size=len(utility_F))))
    return first_unseen(table, order, count, named)


def teacher_list(table: FilmTable, taste: Taste, num_items: int, rng: np.random.Generator) -> list[int]:
    """The imperfect teacher's `num_items` rows, best first, none of the films named.

    Noise decides what is in the list, not where: from lists in a steady order a tiny model soon learns not to repeat.
    """
    opinion_F = np.random.default_rng(TEACHER_SEED).normal(0, TEACHER_OPINION, len(table.films))
    noise_F = rng.normal(0, TEACHER_NOISE, len(table.films))
    score_F = TEACHER_TASTE * table.affinity(taste) + table.log_popularity_F + opinion_F
    chosen = first_unseen(table, np.argsort(-(score_F + noise_F)), num_items, taste.named)
    return sorted(chosen, key=lambda row: -score_F[row])


def what_is_said(taste: Taste, rng: np.random.Generator) -> Taste:
    """What a first turn tells that says little: of a taste nothing, its genres or its era; films, where it is only of
    these."""
    if not taste.genres:
        return taste
    return (Taste(()), Taste(taste.genres), Taste((), taste.era))[int(rng.choice(3, p=(0.5, 0.25, 0.25)))]


def make_rows(table: FilmTable, split: str, count: int, seed: int, num_items: int, requests: str = PLAIN) -> list[dict]:
    """`count` rows with completions; row i of a split depends on the seed and the requests, and on nothing else."""
    rows = []
    for index in Progress(range(count), desc=split, unit="row"):
        rng = np.random.default_rng([seed, SPLITS.index(split), index])
        if requests == HARD:
            kind, taste, conversation = draw_request(table, rng)
            told = taste
            further = {KIND: kind}
        else:
            taste = draw_taste(table, rng)
            further = {}
            told = what_is_said(taste, rng) if requests == LITTLE else taste
            conversation = write_conversation(table, told, rng)
        size = 1 + int(rng.choice(len(GROUND_TRUTH_SIZES), p=GROUND_TRUTH_SIZES))
        truth = draw_films(table, table.utility(taste), size, told.named, rng)
        shown = [table.films[row] for row in teacher_list(table, told, num_items, rng)]
        rows.append(
            {
                "prompt": message("user", prompt_text(conversation, num_items)),
                "seen_titles": [table.films[row].title for row in told.named],
                TRUTH: [[table.films[row].title, str(table.films[row].year)] for row in truth],
                "sample_id": f"sample_{split}_{index:05d}",
                "completion": message("assistant", "\n".join(film.name for film in shown)),
                **further,
            }
        )
    return rows


def catalog_rows(table: FilmTable, train_rows: list[dict]) -> list[dict]:
    """The catalog with each film's mentions as ground truth of the training split, and its genres."""
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
    """Write the six tables into `out`; the folder appears whole or not at all. Raises UserError when it is there.

    ask: first turns that say little, and demonstrations that ask about these attributes.
    """
    if ask and requests == HARD:
        raise UserError("--ask, --requests hard: hard requests say all in their first turn; take one of them")
    out = Path(out)
    table = load_films()
    tables = {*SPLITS, "sft_train", "sft_validation", "catalog"}
    check_out(out, overwrite, {f"{name}.parquet" for name in tables})
    if not 1 <= num_items <= 100:
        raise UserError(f"--num-items {num_items}: give 1 to 100")
    for split in SPLITS:
        if counts[split] < 1:
            raise UserError(f"--{split} {counts[split]}: give at least one row")
    with folder_written_whole(out) as partial:
        for split in SPLITS:
            rows = make_rows(table, split, counts[split], seed, num_items, LITTLE if ask else requests)
            kind = [pa.field(KIND, pa.string())] if requests == HARD else []
            rl, sft = (pa.schema([*schema, *kind]) for schema in (RL_SCHEMA, SFT_SCHEMA))
            pq.write_table(pa.Table.from_pylist(rows, rl), partial / f"{split}.parquet")
            if split != "test":
                pq.write_table(pa.Table.from_pylist(rows, sft), partial / f"sft_{split}.parquet")
            if split == "train":
                further = [pa.field("mentions", pa.int32()), pa.field("genres", pa.list_(pa.string()))]
                catalog_schema = pa.schema([*CATALOG_SCHEMA, *further])
                catalog = pa.Table.from_pylist(catalog_rows(table, rows), catalog_schema)
                pq.write_table(catalog, partial / "catalog.parquet")
        if ask:
            matcher = make_matcher(load_catalog(partial / "catalog.parquet"), ListSettings())
            add_questions(partial, ask, matcher, num_items, seed)
    return out


def first_unseen(table: FilmTable, order: np.ndarray, count: int, named: tuple[int, ...]) -> list[int]:
    """The first `count` rows of `order` without the films named, without namesakes of them or of each other."""
    taken = {row for film in named for row in table.rows_titled_like(film)}
    rows: list[int] = []
    for row in map(int, order):
        if len(rows) == count:
            break
        if row not in taken:
            rows.append(row)
            taken.update(table.rows_titled_like(row))
    return rows


@command(SampleOptions)
def main(options: SampleOptions) -> int:
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
