"""Time and quality of parsing, matching and rewards on one core. Prints one JSON object.

python benchmarks/bench_matching.py [--catalog CATALOG] [--foreign CATALOG] [--reference CLONE] [--repeats 7]

A batch is one training step: 384 responses of 20 lines. Of the lines 70 % are catalog items, 10 % catalog items with
a wrong year (3 to 9 off), 10 % misspelt (one or two typos), 10 % titles that the catalog does not have. Without
--catalog the catalog is generated; without --foreign the foreign titles are generated too. `cold` starts as a worker
does, which has met no line; in `warm` all lines were met before; training lies between.
bench_growth.py has other sizes of the catalog. Times are CPU time: medians with their quartiles.

What one would use instead takes turns with ours, and `of ...` is the median ratio of a turn's text to returns, cold:
rapidfuzz on each line and the whole catalog for fuzzy, and for exact the reward function of a clone of
github.com/yaochenzhu/Rank-GRPO (`pip install editdistance regex` for its imports).
"""

import argparse
import gc
import importlib
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rapidfuzz import fuzz, process

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.generated import LINES, draw_misspelt, generate_catalog, list_dated_items, make_responses
from benchmarks.machine import print_report
from benchmarks.meters import summarise
from convrec.lists.rank_rewards import rank_returns
from convrec.lists.ranks import parse_items, split_lines
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.forms import fold, forms, normalise
from convrec.titles.item import parse_item
from convrec.titles.matching import Matcher

RESPONSES = 384


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--catalog")
    arguments.add_argument("--foreign", help="catalog whose items that the first one lacks are the foreign titles")
    arguments.add_argument("--reference", help="folder of a clone of the method's public code")
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--seed", type=int, default=3407)
    options = arguments.parse_args()
    rng = random.Random(options.seed)

    catalog = load_catalog(options.catalog) if options.catalog else generate_catalog(7404, rng)
    known = {fold(title) for title in catalog.titles}
    source = load_catalog(options.foreign) if options.foreign else generate_catalog(4000, rng)
    foreign = [item for item in list_dated_items(source) if fold(item[0]) not in known]

    report: dict = {"catalog": len(catalog), "lines": RESPONSES * LINES, "modes": {}}
    for mode in ("exact", "fuzzy", "reference"):
        report["modes"][mode] = measure(mode, catalog, foreign, options, rng)
    report["quality"] = quality(catalog, foreign, rng)
    report["responses"] = more_responses(catalog, foreign, options.repeats, rng)
    print_report(report)


def measure(mode: str, catalog: Catalog, foreign: list, options: argparse.Namespace, rng: random.Random) -> dict:
    """Milliseconds: index build, and for one batch the matching alone and text -> rank returns."""
    responses = make_responses(list_dated_items(catalog), foreign, rng, RESPONSES)
    truths = [rng.sample(list_dated_items(catalog), 3) for _ in responses]
    matcher = Matcher(catalog, mode)
    match = matching_of(matcher, responses, truths)

    def forget_all() -> None:
        forms.cache_clear()
        parse_item.cache_clear()

    def whole() -> None:
        for text, truth in zip(responses, truths, strict=True):
            rank_returns(matcher.match_lines(split_lines(text), truth, [truth[0][0]]).relevance, LINES)

    calls = {"match cold": match, "match warm": match, "text to returns cold": whole, "text to returns warm": whole}
    peer = None
    if mode == "fuzzy":
        peer = "rapidfuzz on every line"
        calls[peer] = rapidfuzz_on_every_line(catalog, responses)
    if mode == "exact" and options.reference:
        peer = "the public reference"
        calls[peer] = public_reference(Path(options.reference), catalog, responses, truths)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.repeats):
        for name, call in calls.items():
            if name.endswith("cold"):
                forget_lines(matcher)
            times[name].append(milliseconds(call))
    result: dict[str, Any] = {"build": timed(lambda: Matcher(catalog, mode), 3, forget_all)}
    result |= {name: summarise(found) for name, found in times.items()}
    if peer:
        turns = zip(times["text to returns cold"], times[peer], strict=True)
        result[f"of {peer}"] = round(statistics.median(ours / theirs for ours, theirs in turns), 3)
    return result


def rapidfuzz_on_every_line(catalog: Catalog, responses: list[str]) -> Callable[[], None]:
    """Each line's similarity to each catalog title, by rapidfuzz's fastest call; years are not even looked at."""
    titles = [normalise(title) for title in catalog.titles]

    def run() -> None:
        lines = [normalise(item.title) for text in responses for item in parse_items(text) if item]
        process.cdist(lines, titles, scorer=fuzz.ratio, score_cutoff=90, dtype=np.uint8, workers=1).argmax(axis=1)

    return run


def public_reference(clone: Path, catalog: Catalog, responses: list[str], truths: list) -> Callable[[], None]:
    sys.path.insert(0, str(clone))
    functions = importlib.import_module("libs.reward_funcs")
    reward = functions.make_reward_func_individual(LINES, set(list_dated_items(catalog)))
    completions, seen = [[{"content": text}] for text in responses], [[truth[0][0]] for truth in truths]
    return lambda: reward(completions, truths, seen)


def matching_of(matcher: Matcher, responses: list[str], truths: list) -> Callable[[], None]:
    split = [split_lines(text) for text in responses]

    def match() -> None:
        for lines, truth in zip(split, truths, strict=True):
            matcher.match_lines(lines, truth, [truth[0][0]])

    return match


def forget_lines(matcher: Matcher) -> None:
    caches = [value for value in vars(matcher).values() if hasattr(value, "cache_clear")]
    for cached in (*caches, forms, parse_item):
        cached.cache_clear()


def quality(catalog: Catalog, foreign: list, rng: random.Random) -> dict:
    """Shares of misspelt titles found, found as another item, and of foreign titles wrongly found."""
    matcher = Matcher(catalog, "fuzzy")
    result = misspelt(matcher, 3000, rng)
    false = [item for item in foreign if matcher.identify(*item).index >= 0]
    result |= {"foreign": len(foreign), "foreign_matched": round(len(false) / len(foreign), 4)}
    return result


def misspelt(matcher: Matcher, size: int, rng: random.Random) -> dict:
    catalog, result = matcher.catalog, {}
    items = list_dated_items(catalog)
    for typos in (1, 2):
        found = wrong = 0
        for written, title, year in draw_misspelt(items, typos, rng, size):
            row = matcher.identify(written, year).index
            hit = row >= 0 and fold(catalog.titles[row]) == fold(title)
            found, wrong = found + hit, wrong + (row >= 0 and not hit)
        result[f"misspelt_{typos}_found"] = round(found / size, 4)
        result[f"misspelt_{typos}_wrong"] = round(wrong / size, 4)
    return result


def more_responses(catalog: Catalog, foreign: list, repeats: int, rng: random.Random) -> list[dict]:
    """Cold fuzzy microseconds a line as the batch grows: flat or falling (lines come back) is linear or better."""
    matcher, rows = Matcher(catalog, "fuzzy"), []
    for count in (96, 192, 384, 768, 1536):
        responses = make_responses(list_dated_items(catalog), foreign, rng, count)
        truths = [rng.sample(list_dated_items(catalog), 3) for _ in responses]
        cold = timed(matching_of(matcher, responses, truths), repeats, lambda: forget_lines(matcher))
        rows.append({"responses": count, "us_per_line": round(1000 * cold["ms"] / (count * LINES), 2)})
    return rows


def milliseconds(run: Callable[[], object]) -> float:
    """As timeit, without the garbage collector, whose turns fall on one or the other."""
    gc.disable()
    start = time.process_time()
    run()
    taken = time.process_time() - start
    gc.enable()
    return 1000 * taken


def timed(run: Callable[[], object], repeats: int, before: Callable[[], object] = lambda: None) -> dict:
    times = []
    for _ in range(repeats):
        before()
        times.append(milliseconds(run))
    return summarise(times)


if __name__ == "__main__":
    main()
