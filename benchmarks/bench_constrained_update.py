"""An update's forward and backward pass under the constraint of a catalog, and in other ways. Prints JSON.

python benchmarks/bench_constrained_update.py [--catalog CATALOG] [--lists 4] [--prompt 100] [--hidden 128] [--layers 2]
    [--device cuda --dtype bfloat16]

A Qwen2 of that size with the vocabulary of generated.make_tekken (--tokenizer FOLDER: of that one) and lists of 20
items, with 10 items excluded each, sampled evenly from the allowed tokens; without --catalog titles are generated. Each
round makes, one after the other, log-probs and their gradients with respect to all weights:

constrained  this program's: logits of allowed tokens alone, none at a forced token
masked       the same log-probs from whole logits with a mask, as one would write it
free         the log-probs of the free policy, from whole logits, as verl does
at once      these at positions of responses alone: this program's, on a CPU
fused        the same in chunks: this program's, on a GPU
verl's fused these by verl's fused torch kernel

masked, free and verl's fused make logits for prompts too, as verl does. `head` is without the model below the head.
Figures are medians of --repeats in CPU seconds (on a GPU by the clock), and ratios to `constrained`. `walk` is what
reading the choices takes, once a step.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.generated import make_catalog_trie, sample_list
from benchmarks.machine import print_report
from benchmarks.meters import synchronize
from convrec.features.constrained.choices import ChoiceReader, joined
from convrec.features.constrained.log_probs import ConstrainedHead
from convrec.features.constrained.walk import Walk
from convrec.training.log_prob_head import compute_at_positions
from convrec.training.token_log_probs import compute_chunked_log_probs, compute_whole_log_probs

NUM_ITEMS, EXCLUDED = 20, 10


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--catalog")
    arguments.add_argument("--tokenizer")
    sizes = {"items": 7404, "lists": 4, "prompt": 100, "hidden": 128, "layers": 2, "repeats": 5, "seed": 3407}
    for name, default in sizes.items():
        arguments.add_argument(f"--{name}", type=int, default=default)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--dtype", default="float32")
    options = arguments.parse_args()
    device = torch.device(options.device)
    rng = random.Random(options.seed)
    torch.manual_seed(options.seed)
    tokenizer, films, catalog = make_catalog_trie(options.catalog, options.tokenizer, options.items, rng)
    constraints = [[NUM_ITEMS, *rng.sample(range(len(films)), EXCLUDED)] for _ in range(options.lists)]
    walks = [Walk(catalog, constraint[0], constraint[1:]) for constraint in constraints]
    written = [sample_list(walk, rng) for walk in walks]
    lists = [tokens for tokens, _ in written]

    longest = options.prompt + max(map(len, lists))
    rows = [[0] * options.prompt + one + [0] * (longest - options.prompt - len(one)) for one in lists]
    input_ids = torch.tensor(rows, device=device)
    targets = input_ids.flatten().roll(-1)
    starts = [row * longest + options.prompt - 1 for row in range(len(lists))]
    begin = time.process_time()
    choices = joined(list(map(ChoiceReader(catalog).read, lists, constraints)), starts)
    walk_seconds = time.process_time() - begin
    choice_positions = torch.from_numpy(choices.place_F).long().to(device)
    allowed = [tokens for _, of_list in written for tokens in of_list]
    is_closed = torch.ones(len(choice_positions), len(tokenizer), dtype=torch.bool, device=device)
    for row, tokens in enumerate(allowed):
        is_closed[row, tokens] = False

    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=options.hidden,
            intermediate_size=4 * options.hidden,
            num_hidden_layers=options.layers,
            num_attention_heads=options.hidden // 64,
            num_key_value_heads=options.hidden // 64,
        )
    ).to(device, getattr(torch, options.dtype))
    weight, head = model.lm_head.weight, ConstrainedHead(catalog)

    def masked(hidden: torch.Tensor) -> torch.Tensor:
        log_probs = (
            (hidden @ weight.T).index_select(0, choice_positions).masked_fill(is_closed, -torch.inf).log_softmax(-1)
        )
        return log_probs.gather(1, targets[choice_positions, None])[:, 0]

    positions = torch.cat([torch.arange(start, start + len(one)) for start, one in zip(starts, lists, strict=True)])
    chosen = positions, targets[positions]

    def fused_by_verl(hidden: torch.Tensor) -> torch.Tensor:
        from verl.utils.experimental.torch_functional import FusedLinearForPPO

        return FusedLinearForPPO()(hidden[None], weight, targets[None])[0]

    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "constrained": lambda hidden: head.log_probs(hidden, weight, choices)[0],
        "masked": masked,
        "free": lambda hidden: -torch.nn.functional.cross_entropy(hidden @ weight.T, targets, reduction="none"),
        "at once": lambda hidden: compute_at_positions(compute_whole_log_probs, hidden, weight, chosen, 1.0, False)[0],
        "fused": lambda hidden: compute_at_positions(compute_chunked_log_probs, hidden, weight, chosen, 1.0, False)[0],
        "verl's fused": fused_by_verl,
    }
    given = torch.randn(input_ids.numel(), options.hidden, device=device, dtype=weight.dtype, requires_grad=True)
    bodies: dict[str, Callable[[], torch.Tensor]] = {
        "head": lambda: given,
        "update": lambda: model.model(input_ids=input_ids, use_cache=False).last_hidden_state.flatten(0, 1),
    }
    with torch.no_grad():
        difference = (ways["constrained"](given)[choice_positions] - masked(given)).abs().max()
    spent: dict[str, dict[str, list[float]]] = {part: {way: [] for way in ways} for part in bodies}
    for _ in range(options.repeats + 1):  # the first round is left out
        for part, body in bodies.items():
            for way, log_probs in ways.items():
                model.zero_grad()
                given.grad = None
                begin = now(device)
                log_probs(body()).sum().backward()
                spent[part][way].append(now(device) - begin)
    medians = {part: {way: statistics.median(times[1:]) for way, times in of.items()} for part, of in spent.items()}
    response_tokens = sum(map(len, lists))
    report: dict[str, Any] = {
        "items": catalog.num_items,
        "vocabulary": len(tokenizer),
        "tokens": input_ids.numel(),
        "response tokens": response_tokens,
        "forced": 1 - len(choice_positions) / response_tokens,
        "allowed tokens at a choice": statistics.mean(map(len, allowed)),
        "largest difference to masked": difference.item(),  # in bf16 its rounding: `masked` is not in fp32
        "walk": walk_seconds,
        "seconds": medians,
        "ratios": {
            part: {way: seconds / of["constrained"] for way, seconds in of.items()} for part, of in medians.items()
        },
    }
    print_report(report)


def now(device: torch.device) -> float:
    """Return the seconds of CPU time; of the clock where a GPU has to end its work first."""
    if device.type == "cpu":
        return time.process_time()
    synchronize(device.type)
    return time.perf_counter()


if __name__ == "__main__":
    main()
