"""Growth of the evaluation with the conversations of the split."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.growth.files import READING, get_catalog_file, prepare_fixed_catalog
from benchmarks.growth.harness import CATALOG_TITLES, NUM_ITEMS, SEED, Clock, Figures, Quantity
from benchmarks.growth.rows import SENTENCE, make_row

FOREIGN_TITLES = 2000
RESPONSES = 384


def measure_evaluation(size: int, files: Path, repeats: int) -> Figures:
    """Read the split, score the lists, summarise them, compare two models."""
    from benchmarks.generated import generate_catalog, list_dated_items, make_responses
    from convrec.lists.metrics import KS, list_metric_names, paired
    from convrec.lists.ranks import split_lines
    from recipes.evaluation.beyond_accuracy import make_context
    from recipes.evaluation.scoring import score_responses, summarise_rows
    from recipes.evaluation.split import read_split

    clock = Clock()
    catalog_file = get_catalog_file(CATALOG_TITLES, files)
    split = clock.time("read_s", lambda: read_split(write_split(size, files, catalog_file), catalog_file))
    rng = random.Random(SEED)
    foreign = list_dated_items(generate_catalog(FOREIGN_TITLES, rng))
    texts = make_responses(list_dated_items(split.catalog), foreign, rng, RESPONSES)
    lists = [[split.matcher.read_line(line) for line in split_lines(text)] for text in texts]
    responses = [lists[row % RESPONSES] for row in range(size)]
    settings = {"ks": KS, "num_items": NUM_ITEMS, "seed": SEED}
    context = clock.time("context_s", lambda: make_context(split, split.rows))
    scored = clock.time("score_s", lambda: score_responses(split, split.matcher, responses, "paper", settings))
    clock.time("summarise_s", lambda: summarise_rows(scored, split, settings, context))
    others = [*scored[1:], scored[0]]
    clock.time("compare_s", lambda: paired(scored, others, list_metric_names(KS), split.prompt_ids))
    return clock.figures


def write_split(size: int, files: Path, catalog_file: Path) -> Path:
    """Write `split-SIZE.parquet`: conversations with one to three relevant titles, of which three name one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from convrec.data.schema import RL_SCHEMA, TRUTH
    from convrec.titles.catalog import load_catalog

    catalog = load_catalog(catalog_file)
    rng = random.Random(SEED)

    def iter_rows() -> Iterator[dict[str, Any]]:
        for number in range(size):
            drawn = rng.sample(range(len(catalog)), rng.randint(1, 3))
            row = make_row(number, SENTENCE)
            truth = [[catalog.titles[item], str(catalog.years[item])] for item in drawn]
            yield {name: row[name] for name in RL_SCHEMA.names} | {TRUTH: truth}

    file = files / f"split-{size}.parquet"
    pq.write_table(pa.Table.from_pylist(list(iter_rows()), RL_SCHEMA), file)
    return file


EVALUATION = (*READING, "benchmarks.bench_matching", "recipes.evaluation.scoring")
QUANTITIES = {
    "evaluation": Quantity(
        "conversations",
        measure_evaluation,
        EVALUATION,
        prepare_fixed_catalog,
        largest=100_000,  # a million would take 10 GiB
    )
}
