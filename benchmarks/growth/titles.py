"""Growth with the catalog's titles: matching the lines of lists, and the trie of constrained lists."""

import random
import time
from pathlib import Path
from typing import Any

from benchmarks.growth.files import (
    READING,
    TOKENIZER,
    get_catalog_file,
    list_tries,
    load_model_tokenizer,
    prepare_catalog_and_model,
)
from benchmarks.growth.harness import NUM_ITEMS, SEED, Clock, Figures, Quantity, measure_seconds

FOREIGN_TITLES = 2000
MISSPELT_TITLES = 1000
RESPONSES = 384
LISTS = 64
EXCLUDED = 100


def measure_matching(size: int, files: Path, repeats: int) -> Figures:
    """Load the catalog, index it, read new lines of lists; shares of misspelt titles that are found."""
    from benchmarks.bench_matching import forget_lines, matching_of, misspelt
    from benchmarks.generated import LINES, generate_catalog, list_dated_items, make_responses
    from convrec.titles.catalog import load_catalog
    from convrec.titles.matching import Matcher

    clock = Clock()
    catalog = clock.time("load_catalog_s", lambda: load_catalog(get_catalog_file(size, files)))
    matcher = clock.time("index_s", lambda: Matcher(catalog))
    rng = random.Random(SEED)
    items = list_dated_items(catalog)
    foreign = list_dated_items(generate_catalog(FOREIGN_TITLES, rng))
    responses = make_responses(items, foreign, rng, RESPONSES)
    match = matching_of(matcher, responses, [rng.sample(items, 3) for _ in responses])
    seconds = measure_seconds(match, repeats, lambda: forget_lines(matcher))
    found = misspelt(matcher, MISSPELT_TITLES, rng)
    return clock.figures | {"line_us": 1e6 * seconds / (RESPONSES * LINES)} | found


def measure_trie(size: int, files: Path, repeats: int) -> Figures:
    """Encode the lines, write, read and build the trie; one step of LISTS lists, and whole lists."""
    import numpy as np
    import torch

    from convrec.features.constrained.catalog_trie import catalog_trie, load_catalog_trie, save_catalog_trie
    from convrec.features.constrained.vllm_lists import OpenList, OpenLists, TrieMask
    from convrec.features.constrained.walk import Walk
    from convrec.titles.catalog import load_catalog
    from convrec.titles.matching import Matcher

    clock = Clock()
    tokenizer = load_model_tokenizer(files)
    file = get_catalog_file(size, files)
    matcher = Matcher(load_catalog(file))
    for cached in list_tries(size, files):  # of `serving`, or of an earlier run
        cached.unlink()
    lines, _ = clock.time("encode_s", lambda: catalog_trie(file, matcher, tokenizer, "\n", files))
    clock.time("write_s", lambda: save_catalog_trie(files / "trie.npz", lines))
    lines = clock.time("read_s", lambda: load_catalog_trie(files / "trie.npz"))
    trie = clock.time("build_s", lambda: lines.trie)
    rng = random.Random(SEED)
    excluded = rng.sample(range(size), min(EXCLUDED, size // 2))
    figures = clock.figures | {
        "nodes": len(trie.token_L),
        "trie_mib": sum(array.nbytes for array in vars(trie).values()) / 2**20,
        "start_list_us": 1e6 * measure_seconds(lambda: Walk(lines, NUM_ITEMS, excluded), 10 * repeats),
    }
    mask = TrieMask(lines, "cpu")
    lists = OpenLists()
    for key in range(LISTS):
        lists.put(key, OpenList(Walk(lines, NUM_ITEMS, excluded), mask))
    keys_B = np.arange(LISTS)
    logits_BV = torch.zeros(LISTS, len(tokenizer))
    figures["mask_ms"] = 1e3 * measure_seconds(lambda: lists.mask(logits_BV, keys_B, keys_B), repeats)
    return figures | measure_walks(lines, excluded, rng)


def measure_walks(lines: Any, excluded: list[int], rng: random.Random) -> Figures:
    """Return the figures of lists whose allowed tokens are equally likely."""
    from benchmarks.generated import sample_list
    from convrec.features.constrained.walk import Walk

    num_tokens = num_choices = 0
    begin = time.process_time()
    for _ in range(LISTS):
        tokens, choices = sample_list(Walk(lines, NUM_ITEMS, excluded), rng)
        num_tokens += len(tokens)
        num_choices += len(choices)
    seconds = time.process_time() - begin
    return {
        "list_ms": 1e3 * seconds / LISTS,
        "list_tokens": num_tokens / LISTS,
        "forced_share": 1 - num_choices / num_tokens,
    }


MATCHING = (*READING, "benchmarks.bench_matching")
TRIE = (*READING, *TOKENIZER, "convrec.inference.recommender", "convrec.features.constrained.vllm_lists")
QUANTITIES = {
    "matching": Quantity("titles", measure_matching, MATCHING, prepare_catalog_and_model),
    "trie": Quantity("titles", measure_trie, TRIE, prepare_catalog_and_model),
}
