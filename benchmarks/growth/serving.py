"""Growth of a service with its catalog: the front, without vLLM's process."""

import random
from pathlib import Path
from typing import Any

from benchmarks.growth.files import READING, TOKENIZER, get_catalog_file, prepare_catalog_and_trie
from benchmarks.growth.harness import NUM_ITEMS, SEED, Clock, Figures, Quantity, measure_seconds


def measure_serving(size: int, files: Path, repeats: int) -> Figures:
    """Start a recommender without its engine; prepare requests, list popular items, add an item."""
    from convrec import Recommender
    from convrec.features.constrained.walk import Walk

    def begin_list(**filters: Any) -> None:
        request = recommender._requests.build(conversation, NUM_ITEMS, **filters)
        Walk(request.allowed.trie.trie, request.num_items, request.walk_exclusions)

    clock = Clock()
    settings: dict[str, Any] = {"with_engine": False, "max_items": NUM_ITEMS}
    recommender = clock.time(
        "start_s", lambda: Recommender.load(files / "model", get_catalog_file(size, files), **settings)
    )
    clock.time("warm_s", recommender.warm)
    rng = random.Random(SEED)
    seen = [f"i{rng.randrange(size)}" for _ in range(5)]
    recent = {"year": {"min": 2000}}
    conversation = "Something with a chase, please."
    figures = {
        "request_ms": 1e3 * measure_seconds(lambda: begin_list(seen=seen), repeats),
        "popular_ms": 1e3 * measure_seconds(lambda: recommender.popular(conversation, seen=seen), repeats),
    }
    clock.time("new_condition_s", lambda: begin_list(seen=seen, where=recent))
    figures["condition_ms"] = 1e3 * measure_seconds(lambda: begin_list(seen=seen, where=recent), repeats)
    item = {"item_id": "new", "title": "An Item Added Later", "year": 2026, "mentions": 1}
    clock.time("add_item_s", lambda: recommender.add_items([item]))
    recommender.close()
    return clock.figures | figures


SERVING = (*READING, *TOKENIZER, "convrec.inference.recommender", "convrec.features.constrained.vllm_lists")
QUANTITIES = {"serving": Quantity("titles", measure_serving, SERVING, prepare_catalog_and_trie)}
