"""The head's part of an update, forward and backward, under the constraint of a catalog and without it. Prints JSON.

python benchmarks/bench_constrained_update.py [--items 7404] [--lists 8] [--prompt 100] [--hidden 64] [--repeats 5]

Lists of 20 items, sampled evenly from the allowed tokens over a generated catalog, with 10 items excluded each, in
Mistral's tekken vocabulary (as bench_trie.py). Timed are log-probs of hidden states that are there already, and their
gradients with respect to these and to the head: `constrained`, this program's; `full`, log-softmax of all logits, as
verl computes it with padding removed; `fused`, verl's fused torch kernel. The last two take all tokens, prompts too, as
in verl. Each round runs all of them; figures are medians of --repeats, with the quartiles, in CPU
milliseconds, and ratios of the medians. `walk` is what reading the choices of these lists takes, once a step.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from bench_trie import generated_catalog, tekken

from convrec.constrained.catalog_trie import build_catalog_trie
from convrec.constrained.choices import ChoiceReader, joined
from convrec.constrained.log_probs import ConstrainedHead
from convrec.constrained.walk import Walk
from convrec.lists.matching import Matcher

NUM_ITEMS, EXCLUDED = 20, 10


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (
        ("items", 7404),
        ("lists", 8),
        ("prompt", 100),
        ("hidden", 64),
        ("repeats", 5),
        ("seed", 3407),
    ):
        arguments.add_argument(f"--{name}", type=int, default=default)
    options = arguments.parse_args()
    rng = random.Random(options.seed)
    torch.manual_seed(options.seed)
    tokenizer = tekken()
    catalog = build_catalog_trie(Matcher(generated_catalog(options.items, rng), "exact"), tokenizer, "\n")
    constraints = [[NUM_ITEMS, *rng.sample(range(options.items), EXCLUDED)] for _ in range(options.lists)]
    lists = [sampled(Walk(catalog, constraint[0], constraint[1:]), rng) for constraint in constraints]

    ends = torch.tensor([options.prompt + len(one) for one in lists]).cumsum(0)
    starts = [int(end) - len(one) - 1 for end, one in zip(ends, lists, strict=True)]
    begin = time.process_time()
    choices = joined(ChoiceReader(catalog).of(lists, constraints), starts)
    walk = (time.process_time() - begin) * 1e3
    tokens = torch.cat([torch.tensor([0] * options.prompt + one) for one in lists]).roll(-1)
    hidden = torch.randn(len(tokens), options.hidden, requires_grad=True)
    weight = torch.randn(len(tokenizer), options.hidden, requires_grad=True)
    head = ConstrainedHead(catalog)

    def full() -> torch.Tensor:
        return -torch.nn.functional.cross_entropy(hidden @ weight.T, tokens, reduction="none")

    def fused() -> torch.Tensor:
        from verl.utils.experimental.torch_functional import FusedLinearForPPO

        return FusedLinearForPPO()(hidden[None], weight, tokens[None])[0]

    calls: dict[str, Callable[[], torch.Tensor]] = {
        "constrained": lambda: head.log_probs(hidden, weight, choices)[0],
        "full": full,
        "fused": fused,
    }
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.repeats + 1):  # the first round is left out
        for name, call in calls.items():
            hidden.grad = weight.grad = None
            begin = time.process_time()
            call().sum().backward()
            spent[name].append((time.process_time() - begin) * 1e3)
    medians = {name: statistics.median(times[1:]) for name, times in spent.items()}
    response_tokens = sum(map(len, lists))
    report: dict[str, Any] = {
        "tokens": len(tokens),
        "response tokens": response_tokens,
        "forced": 1 - len(choices.place_F) / response_tokens,
        "vocabulary": len(tokenizer),
        "milliseconds": {
            name: [medians[name], statistics.quantiles(times[1:], n=4)[::2]] for name, times in spent.items()
        },
        "walk": walk,
        "ratios": {name: medians[name] / medians["constrained"] for name in ("full", "fused")},
    }
    print(json.dumps(report, indent=2))


def sampled(walk: Walk, rng: random.Random) -> list[int]:
    tokens: list[int] = []
    while len(walk.items) < NUM_ITEMS:
        tokens.append(rng.choice(walk.allowed()))
        walk.advance(tokens[-1])
    return tokens


if __name__ == "__main__":
    main()
