"""Time and memory of the catalog's trie. Prints one JSON object.

python benchmarks/bench_trie.py [--catalog CATALOG] [--tokenizer FOLDER] [--items 7404] [--matching fuzzy]

Without --catalog titles are generated. Without --tokenizer the vocabulary is that of Mistral's tekken, 150,000 tokens,
which mistral_common ships (a dependency of vLLM). Times are seconds of wall and of CPU; others may use the machine.
`exclude` is what it takes to exclude one item in a list, `mask` one step of 256 lists, all at the widest place.
"""

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from convrec.features.constrained.catalog_trie import INNER, CatalogTrie, build_catalog_trie
from convrec.features.constrained.trie import Int64s
from convrec.features.constrained.vllm_lists import OpenList, OpenLists, TrieMask
from convrec.features.constrained.walk import Walk
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.matching import Matcher

LISTS, NUM_ITEMS, EXCLUDED = 256, 20, 100


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--catalog")
    arguments.add_argument("--tokenizer")
    arguments.add_argument("--items", type=int, default=7404, help="how many are generated")
    arguments.add_argument("--matching", default="fuzzy")
    arguments.add_argument("--seed", type=int, default=3407)
    options = arguments.parse_args()
    rng = random.Random(options.seed)
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else tekken()
    catalog = load_catalog(options.catalog) if options.catalog else generated_catalog(options.items, rng)

    report: dict[str, Any] = {"items": len(catalog), "vocabulary": len(tokenizer), "seconds": {}}
    matcher = timed(report, "matcher", lambda: Matcher(catalog, options.matching))
    before = peak_mib()
    lines = timed(report, "lines", lambda: build_catalog_trie(matcher, tokenizer, "\n"))
    trie = timed(report, "trie", lambda: lines.trie)
    report["mib"] = {
        "trie": sum(array.nbytes for array in vars(trie).values()) / 2**20,
        "file": (lines.tokens.nbytes + lines.ends_S.nbytes + 2 * lines.row_W.nbytes) / 2**20,
        "peak while it is made": peak_mib() - before,
    }
    report |= {"nodes": len(trie.token_L), "lines": len(lines.row_W), "left_out": len(lines.left_out)}
    report["first tokens"] = int(trie.first_child[INNER + 1] - trie.first_child[INNER])

    excluded = rng.sample(range(len(catalog)), EXCLUDED)
    walk_us = microseconds(lambda: Walk(lines, NUM_ITEMS), 50)
    report["microseconds"] = {
        "walk": walk_us,
        "exclude": (microseconds(lambda: Walk(lines, NUM_ITEMS, excluded), 50) - walk_us) / EXCLUDED,
    }
    steps = tokens = forced = 0
    for _ in range(20):
        walk = Walk(lines, NUM_ITEMS, excluded)
        while len(walk.items) < NUM_ITEMS:
            allowed = walk.allowed()
            forced += len(allowed) == 1
            tokens += 1
            walk.advance(rng.choice(allowed))
        steps += 1
    report["tokens of a list"], report["forced"] = tokens / steps, forced / tokens
    mask = TrieMask(lines, "cpu")
    logits = torch.randn(LISTS, len(tokenizer))
    keys_B = np.arange(LISTS)
    lists = OpenLists()
    for key in range(LISTS):
        lists.put(key, OpenList(Walk(lines, NUM_ITEMS, excluded), mask))
    report["microseconds"]["mask"] = microseconds(lambda: lists.mask(logits, keys_B, keys_B), 5)
    report["microseconds"] |= measure_steps(lines, mask, excluded, rng)
    report["microseconds"]["fill alone"] = microseconds(lambda: logits.fill_(-torch.inf), 5)
    print(json.dumps(report, indent=2))


def measure_steps(catalog: CatalogTrie, mask: TrieMask, excluded: list[int], rng: random.Random) -> dict[str, float]:
    """What it takes LISTS lists to take a token each: by their walks, and as vLLM's processor does."""
    written = []
    for _ in range(LISTS):
        walk = Walk(catalog, NUM_ITEMS, excluded)
        tokens = []
        while len(walk.items) < NUM_ITEMS:
            tokens.append(rng.choice(walk.allowed()))
            walk.advance(tokens[-1])
        written.append(tokens)
    num_steps = min(map(len, written))
    walks = [Walk(catalog, NUM_ITEMS, excluded) for _ in written]
    lists = OpenLists()
    for key in range(LISTS):
        lists.put(key, OpenList(Walk(catalog, NUM_ITEMS, excluded), mask))
    keys_B = np.arange(LISTS)

    def take_one_by_one(number: int) -> None:
        for walk, tokens in zip(walks, written, strict=True):
            walk.advance(tokens[number])

    def take_at_once(number: int) -> None:
        def read(places: Int64s, numbers: Int64s) -> Int64s:
            pairs = zip(places.tolist(), numbers.tolist(), strict=True)
            return np.array([written[place][number] for place, number in pairs])

        lists.catch_up(keys_B, np.full(LISTS, number + 1), read)

    numbers = iter(range(num_steps))
    one_by_one = microseconds(lambda: take_one_by_one(next(numbers)), num_steps)
    numbers = iter(range(num_steps))
    at_once = microseconds(lambda: take_at_once(next(numbers)), num_steps)
    return {"tokens of a step, one by one": one_by_one, "tokens of a step, at once": at_once}


def timed(report: dict[str, Any], name: str, call: Callable[[], Any]) -> Any:
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    report["seconds"][name] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    return result


def microseconds(call: Callable[[], Any], times: int) -> float:
    """CPU time, the median of single calls."""
    spent = []
    for _ in range(times):
        start = time.process_time()
        call()
        spent.append((time.process_time() - start) * 1e6)
    return sorted(spent)[times // 2]


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def load_tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def tekken() -> Any:
    """Mistral's tekken of 2024-09 as a fast tokenizer, with all of its 150,000 tokens."""
    import mistral_common
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import MistralConverter

    shipped = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    content = json.loads(shipped.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tekken.json"
        file.write_text(json.dumps(content | {"special_tokens": []}), encoding="utf-8")
        converted = MistralConverter(vocab_file=str(file)).converted()
    return PreTrainedTokenizerFast(tokenizer_object=converted, eos_token="</s>")


def generated_catalog(items: int, rng: random.Random) -> Catalog:
    """Titles of one to five words from 5,000 made-up ones, all different."""
    syllables = [first + second for first in "bcdfghklmnprstvw" for second in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))).capitalize() for _ in range(5000)]
    found: dict[tuple[str, int], None] = {}
    while len(found) < items:
        found[" ".join(rng.choices(words, k=rng.choice((1, 2, 2, 3, 3, 4, 5)))), rng.randint(1930, 2025)] = None
    return Catalog.from_items(list(found))


if __name__ == "__main__":
    main()
