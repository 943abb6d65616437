"""Time and quality of parsing, matching and rewards on one core. Prints one JSON object.

python benchmarks/bench_matching.py [--catalog CATALOG] [--foreign CATALOG] [--reference CLONE] [--repeats 7]

A batch is one training step: 384 responses of 20 lines. Of the lines 70 % are catalog items, 10 % catalog items with
a wrong year (3 to 9 off), 10 % misspelt (one or two typos), 10 % titles that the catalog does not have. Without
--catalog the catalog is generated; without --foreign the foreign titles are generated too. `cold` starts as a worker
does, which has met no line; in `warm` all lines were met before; training lies between.
Times are CPU time: medians with their quartiles.

What one would use instead takes turns with ours, and `of ...` is the median ratio of a turn's text to returns, cold:
rapidfuzz on each line and the whole catalog for fuzzy, and for exact the reward function of a clone of
github.com/yaochenzhu/Rank-GRPO (`pip install editdistance regex` for its imports).
"""

import argparse
import gc
import importlib
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rapidfuzz import fuzz, process

from convrec.lists.rank_rewards import rank_returns
from convrec.lists.ranks import parse_items, split_lines
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.forms import fold, forms, normalise
from convrec.titles.item import format_item, parse_item
from convrec.titles.matching import Matcher

RESPONSES, LINES = 384, 20
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--catalog")
    arguments.add_argument("--foreign", help="catalog whose items that the first one lacks are the foreign titles")
    arguments.add_argument("--reference", help="folder of a clone of the method's public code")
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument(
        "--largest", type=int, default=1_000_000, help="of the generated catalogs (%(default)s titles)"
    )
    arguments.add_argument("--seed", type=int, default=3407)
    options = arguments.parse_args()
    rng = random.Random(options.seed)

    catalog = load_catalog(options.catalog) if options.catalog else generated_catalog(7404, rng)
    known = {fold(title) for title in catalog.titles}
    source = load_catalog(options.foreign) if options.foreign else generated_catalog(4000, rng)
    foreign = [item for item in dated(source) if fold(item[0]) not in known]

    report: dict = {"catalog": len(catalog), "lines": RESPONSES * LINES, "modes": {}}
    for mode in ("exact", "fuzzy", "reference"):
        report["modes"][mode] = measure(mode, catalog, foreign, options, rng)
    report["quality"] = quality(catalog, foreign, rng)
    report["growth"] = growth(options.repeats, options.largest, rng)
    report["responses"] = more_responses(catalog, foreign, options.repeats, rng)
    print(json.dumps(report, indent=2))


def measure(mode: str, catalog: Catalog, foreign: list, options: argparse.Namespace, rng: random.Random) -> dict:
    """Milliseconds: index build, and for one batch the matching alone and text -> rank returns."""
    responses = make_batch(dated(catalog), foreign, rng)
    truths = [rng.sample(dated(catalog), 3) for _ in responses]
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
    result |= {name: spread(found) for name, found in times.items()}
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
    reward = importlib.import_module("libs.reward_funcs").make_reward_func_individual(LINES, set(dated(catalog)))
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
    items = dated(catalog)
    for typos in (1, 2):
        found = wrong = count = 0
        while count < size:
            title, year = rng.choice(items)
            written = misspell(title, typos, rng)
            if fold(written) == fold(title):
                continue
            count += 1
            row = matcher.identify(written, year).index
            hit = row >= 0 and fold(catalog.titles[row]) == fold(title)
            found, wrong = found + hit, wrong + (row >= 0 and not hit)
        result[f"misspelt_{typos}_found"] = round(found / count, 4)
        result[f"misspelt_{typos}_wrong"] = round(wrong / count, 4)
    return result


def growth(repeats: int, largest: int, rng: random.Random) -> list[dict]:
    """Cold fuzzy microseconds a line, seconds to build the index and what is found as a generated catalog grows."""
    rows = []
    for size in (size for size in (1_000, 10_000, 100_000, 1_000_000) if size <= largest):
        catalog = generated_catalog(size, rng)
        responses = make_batch(dated(catalog), dated(generated_catalog(2000, rng)), rng)
        truths = [rng.sample(dated(catalog)[:1000], 3) for _ in responses]
        forms.cache_clear()
        start = time.process_time()
        matcher = Matcher(catalog, "fuzzy")
        build = time.process_time() - start
        cold = timed(matching_of(matcher, responses, truths), min(repeats, 3), partial(forget_lines, matcher))
        per_line = round(1000 * cold["ms"] / (RESPONSES * LINES), 2)
        rows.append(
            {"catalog": size, "us_per_line": per_line, "build_s": round(build, 2)} | misspelt(matcher, 1000, rng)
        )
    return rows


def more_responses(catalog: Catalog, foreign: list, repeats: int, rng: random.Random) -> list[dict]:
    """Cold fuzzy microseconds a line as the batch grows: flat or falling (lines come back) is linear or better."""
    matcher, rows = Matcher(catalog, "fuzzy"), []
    for count in (96, 192, 384, 768, 1536):
        responses = make_batch(dated(catalog), foreign, rng, count)
        truths = [rng.sample(dated(catalog), 3) for _ in responses]
        cold = timed(matching_of(matcher, responses, truths), repeats, lambda: forget_lines(matcher))
        rows.append({"responses": count, "us_per_line": round(1000 * cold["ms"] / (count * LINES), 2)})
    return rows


def make_batch(items: list, foreign: list, rng: random.Random, responses: int = RESPONSES) -> list[str]:
    """Responses of 20 lines; popular items come back as they do in training (a third of the draws from 300 items)."""
    popular = items[:300]

    def line() -> str:
        kind = rng.random()
        title, year = rng.choice(popular if rng.random() < 1 / 3 else items)
        if kind < 0.1:
            year += rng.choice((-1, 1)) * rng.randint(3, 9)
        elif kind < 0.2:
            title = misspell(title, rng.choice((1, 2)), rng)
        elif kind < 0.3:
            title, year = rng.choice(foreign)
        return format_item(title, year)

    return ["\n".join(line() for _ in range(LINES)) for _ in range(responses)]


def misspell(title: str, typos: int, rng: random.Random) -> str:
    """Letters replaced, dropped, added or swapped."""
    for _ in range(typos):
        place, letter = rng.randrange(len(title)), rng.choice(LETTERS)
        title = rng.choice(
            (
                title[:place] + letter + title[place + 1 :],
                title[:place] + title[place + 1 :] or title,
                title[:place] + letter + title[place:],
                title[:place] + title[place + 1 : place + 2] + title[place] + title[place + 2 :],
            )
        )
    return title


def generated_catalog(size: int, rng: random.Random) -> Catalog:
    """Titles of one to four made-up words over 70 years, more of them recent."""
    syllables = [a + b for a in "bcdfglmnprstvw" for b in "aeiou"] + ["an", "er", "in", "on", "st", "th"]
    words = ["".join(rng.choices(syllables, k=rng.randint(2, 4))).title() for _ in range(max(2000, size // 2))]
    titles = [" ".join(rng.choices(words, k=rng.randint(1, 4))) for _ in range(size)]
    return Catalog.from_items([(title, 2023 - int(70 * rng.random() ** 2)) for title in titles])


def dated(catalog: Catalog) -> list[tuple[str, int]]:
    return [(title, year) for title, year in zip(catalog.titles, catalog.years, strict=True) if year is not None]


def milliseconds(run: Callable[[], object]) -> float:
    """As timeit, without the garbage collector, whose turns fall on one or the other."""
    gc.disable()
    start = time.process_time()
    run()
    taken = time.process_time() - start
    gc.enable()
    return 1000 * taken


def spread(times: list[float]) -> dict:
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return {"ms": round(median, 2), "quartiles": [round(low, 2), round(high, 2)]}


def timed(run: Callable[[], object], repeats: int, before: Callable[[], object] = lambda: None) -> dict:
    times = []
    for _ in range(repeats):
        before()
        times.append(milliseconds(run))
    return spread(times)


if __name__ == "__main__":
    main()
