"""Growth of the retrieval with the titles of the catalog, and with the conversations that it is fitted on."""

import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.growth.files import READING, get_catalog_file, prepare_catalog_and_model, prepare_fixed_catalog
from benchmarks.growth.harness import CATALOG_TITLES, NUM_ITEMS, SEED, Clock, Figures, Quantity

WORDS = 80  # of a conversation
FEW_ROWS = 2000
QUERIES = 50


def measure_retrieval(size: int, files: Path, repeats: int) -> Figures:
    return fit_and_rank(FEW_ROWS, size, get_catalog_file(size, files), files)


def measure_corpus(size: int, files: Path, repeats: int) -> Figures:
    return fit_and_rank(size, CATALOG_TITLES, get_catalog_file(CATALOG_TITLES, files), files)


def fit_and_rank(rows: int, items: int, catalog_file: Path, files: Path) -> Figures:
    """Fit the retrieval, write and load it, and rank for conversations, half of which are rows of training."""
    import numpy as np

    from benchmarks.generated import iter_conversations
    from convrec.retrieval.folder import load, save
    from convrec.retrieval.retriever import Choice, fit
    from convrec.titles.catalog import load_catalog
    from convrec.titles.matching import Matcher

    rng = np.random.default_rng(SEED)
    matcher = Matcher(load_catalog(catalog_file), "exact")
    choice = Choice(weights=dict.fromkeys(("neighbours", "ridge", "text"), 1.0))
    clock = Clock()
    with tempfile.TemporaryDirectory(dir=files) as name:
        folder = Path(name)
        # the conversations are generated while they are read: a third of the time of a fit on many rows
        fitted = clock.time("fit_s", lambda: fit(iter_conversations(rows, items, WORDS, rng), rows, items))
        save(folder, fitted, matcher.catalog, {"choice": asdict(choice)})
        del fitted
        retriever, _ = clock.time("load_s", lambda: load(folder, catalog_file, matcher))
        asked = [
            conversation._replace(name=f"c{number}") if number % 2 else conversation
            for number, conversation in enumerate(iter_conversations(QUERIES, items, WORDS, rng))
        ]
        seconds = []
        for conversation in asked:
            begin = time.process_time()
            retriever.rank(conversation, count=NUM_ITEMS)
            seconds.append(time.process_time() - begin)
    return clock.figures | {"query_ms": 1e3 * statistics.median(seconds)}


RETRIEVAL = (*READING, "sklearn.feature_extraction.text", "convrec.retrieval.folder")
QUANTITIES = {
    "retrieval": Quantity("titles", measure_retrieval, RETRIEVAL, prepare_catalog_and_model),
    "corpus": Quantity("conversations of training", measure_corpus, RETRIEVAL, prepare_fixed_catalog),
}
