"""How time and memory grow with the catalog, the training rows, the conversations and the lists. Prints JSON.

python benchmarks/bench_growth.py [--only matching serving] [--largest 1000000] [--repeats 5]

Each quantity is measured at powers of ten on generated data, each size in a process of its own. `slope` is the least
squares slope of the figures over the two upper decades, both in logarithms: 1 is linear, 2 quadratic, 0 constant.
Figures are medians of CPU time with one thread of numpy and torch, so that other work on the machine hardly changes
them (`encode_s` includes the tokenizer's threads); `wall_s` is a size's whole measurement by the clock, and `mib` its
largest resident set above that of the imports. Of a call that takes long there are fewer repeats.

matching        titles: load the catalog, index it, read a new line of a list; misspelt titles that are found, and those
                that are taken for another item
trie            titles: encode the lines, build, write and read the trie; one step of LISTS lists, all at the widest
                place, each with EXCLUDED items excluded
serving         titles: start the recommender without its engine (the trie's file is there); prepare a request, one with
                a new condition, one with the same again; list popular items; add an item
retrieval       titles: fit on FEW_ROWS conversations, load, rank
corpus          conversations of training, 7,404 titles: fit the retrieval, load, rank
rows            rows of training for RL: open the file, read a row, shuffle and read the first batch, resume in the
                middle, draw a hundredth of the rows
demonstrations  rows of training for SFT: the same of its dataset
evaluation      conversations: read the split, score the lists, summarise them, compare two models
lists           lists of a batch, 20 ranks: credit, loss with its gradient
ranks           ranks of FEW_LISTS lists: the same
"""

import argparse
import importlib
import json
import math
import os
import pickle
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tests import this module as a part of benchmarks/
from machine import print_report

Figures = dict[str, float]

# CPU time would count the threads that wait for others. The tokenizer's threads do not wait.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

SEED = 3407
LARGEST = 1_000_000
BUDGET_SECONDS = 20  # of one call's repeats together
DECADES = 2  # over which the slope is fitted

FOREIGN_TITLES = 2000
MISSPELT_TITLES = 1000
RESPONSES = 384
LISTS = 64
NUM_ITEMS = 20
EXCLUDED = 100
WORDS = 80
FEW_ROWS = 2000
QUERIES = 50
CATALOG_OF_ROWS = 7404
GROUP_ROWS = 50_000
ROW_BYTES = 1000
BATCH_ROWS = 16
FEW_LISTS = 16
RESPONSE_TOKENS_PER_RANK = 12
SENTENCE = "I like slow films about trains and the people who miss them, please name some more of these. "
ANSWER = "\n".join(f"Heat ({year})" for year in range(1990, 2010))


# ---- time


def measure_seconds(call: Callable[[], object], repeats: int, prepare: Callable[[], object] = lambda: None) -> float:
    """Return the median CPU seconds of a call, of fewer repeats if they take BUDGET_SECONDS together."""
    seconds: list[float] = []
    while len(seconds) < repeats and sum(seconds) < BUDGET_SECONDS:
        prepare()
        begin = time.process_time()
        call()
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds)


class Clock:
    """Collects the CPU seconds of steps that are done once, since the next one needs their result."""

    def __init__(self) -> None:
        self.figures: Figures = {}

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        begin = time.process_time()
        result = call()
        self.figures[name] = time.process_time() - begin
        return result


def read_peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


# ---- titles


def write_catalog(size: int, files: Path) -> None:
    """Write `catalog-SIZE.parquet`, which has ids and mentions."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from generated import generate_catalog

    rng = random.Random(SEED)
    catalog = generate_catalog(size, rng)
    columns = {
        "item_id": [f"i{row}" for row in range(size)],
        "title": catalog.titles,
        "year": pa.array(catalog.years, pa.int32()),
        "mentions": [rng.randrange(size) for _ in range(size)],
    }
    pq.write_table(pa.table(columns), files / f"catalog-{size}.parquet")


def measure_matching(size: int, files: Path, repeats: int) -> Figures:
    from bench_matching import forget_lines, matching_of, misspelt
    from generated import LINES, generate_catalog, list_dated_items, make_responses

    from convrec.titles.catalog import load_catalog
    from convrec.titles.matching import Matcher

    clock = Clock()
    catalog = clock.time("load_catalog_s", lambda: load_catalog(files / f"catalog-{size}.parquet"))
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
    import numpy as np
    import torch

    from convrec.features.constrained.catalog_trie import catalog_trie, load_catalog_trie, save_catalog_trie
    from convrec.features.constrained.vllm_lists import OpenList, OpenLists, TrieMask
    from convrec.features.constrained.walk import Walk
    from convrec.titles.catalog import load_catalog
    from convrec.titles.matching import Matcher

    clock = Clock()
    tokenizer, _ = load_model_tokenizer(files)
    file = files / f"catalog-{size}.parquet"
    matcher = Matcher(load_catalog(file))
    remove_tries(size, files)
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


def list_tries(size: int, files: Path) -> list[Path]:
    """Return the files in which a catalog's encoded lines are cached."""
    return list(files.glob(f"catalog-{size}.parquet.trie-*"))


def remove_tries(size: int, files: Path) -> None:
    for file in list_tries(size, files):
        file.unlink()


def measure_walks(lines: Any, excluded: list[int], rng: random.Random) -> Figures:
    """Return the figures of lists whose allowed tokens are equally likely."""
    from convrec.features.constrained.walk import Walk

    tokens = forced = 0
    begin = time.process_time()
    for _ in range(LISTS):
        walk = Walk(lines, NUM_ITEMS, excluded)
        while len(walk.items) < walk.num_items:
            allowed = walk.allowed()
            tokens += 1
            forced += len(allowed) == 1
            walk.advance(rng.choice(allowed))
    seconds = time.process_time() - begin
    return {"list_ms": 1e3 * seconds / LISTS, "list_tokens": tokens / LISTS, "forced_share": forced / tokens}


# ---- serving


def write_model(files: Path) -> None:
    """Write a model of random numbers with the tokenizer of `make_tekken`: what a recommender reads of a model."""
    from generated import make_tekken
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = make_tekken()
    turn_end = "{% if message['role'] == 'assistant' %}</s>{% endif %}"
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}" + turn_end + "\n{% endfor %}"
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": len(tokenizer)}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 8192}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, **ends)).save_pretrained(files / "model")
    tokenizer.save_pretrained(files / "model")


def load_model_tokenizer(files: Path) -> Any:
    from convrec.data.tokenizer import load_tokenizer

    return load_tokenizer(str(files / "model"))


def measure_serving(size: int, files: Path, repeats: int) -> Figures:
    from convrec import Recommender
    from convrec.features.constrained.walk import Walk

    def begin_list(**filters: Any) -> None:
        request = recommender._prepare(conversation, NUM_ITEMS, **filters)
        Walk(request.allowed.trie.trie, request.num_items, request.walk_exclusions)

    clock = Clock()
    settings: dict[str, Any] = {"with_engine": False, "max_items": NUM_ITEMS}
    recommender = clock.time(
        "start_s", lambda: Recommender.load(files / "model", files / f"catalog-{size}.parquet", **settings)
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


# ---- retrieval


def measure_retrieval(size: int, files: Path, repeats: int) -> Figures:
    return fit_and_rank(FEW_ROWS, size, files / f"catalog-{size}.parquet", files)


def measure_corpus(size: int, files: Path, repeats: int) -> Figures:
    return fit_and_rank(size, CATALOG_OF_ROWS, files / f"catalog-{CATALOG_OF_ROWS}.parquet", files)


def fit_and_rank(rows: int, items: int, catalog_file: Path, files: Path) -> Figures:
    """Fit the retrieval, write and load it, and rank for conversations, half of which are rows of training."""
    import numpy as np
    from generated import iter_conversations

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


# ---- rows


def write_rows(size: int, files: Path) -> None:
    """Write `rows-SIZE.parquet`: rows of about ROW_BYTES of text, each with a number of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from convrec.data.schema import SFT_SCHEMA

    words = " ".join(random.Random(SEED).choices(SENTENCE.split(), k=ROW_BYTES))[:ROW_BYTES]
    with pq.ParquetWriter(files / f"rows-{size}.parquet", SFT_SCHEMA) as writer:
        for start in range(0, size, GROUP_ROWS):
            rows = [make_row(number, words) for number in range(start, min(start + GROUP_ROWS, size))]
            writer.write_table(pa.Table.from_pylist(rows, SFT_SCHEMA))


def make_row(number: int, words: str) -> dict[str, Any]:
    from convrec.data.schema import TRUTH, format_prompt

    return {
        "prompt": [{"role": "user", "content": format_prompt(f"USER: {number} {words}\n")}],
        "seen_titles": ["Alien"],
        TRUTH: [["Heat", "1995"]],
        "sample_id": f"row_{number:07d}",
        "completion": [{"role": "assistant", "content": ANSWER}],
    }


def measure_rows(size: int, files: Path, repeats: int) -> Figures:
    from convrec.training.dataset import ConvRecDataset

    return measure_dataset(ConvRecDataset, "dataframe", size, files, repeats)


def measure_demonstrations(size: int, files: Path, repeats: int) -> Figures:
    from convrec.training.dataset import DemonstrationDataset

    return measure_dataset(DemonstrationDataset, "table", size, files, repeats)


def measure_dataset(kind: Any, table_name: str, size: int, files: Path, repeats: int) -> Figures:
    """Return the figures of a dataset, which holds its table as `table_name`."""
    from omegaconf import OmegaConf

    from convrec.data.schema import format_prompt
    from convrec.training.dataset import draw_rows
    from recipes.tiny_model import train_tokenizer

    clock = Clock()
    tokenizer = train_tokenizer([format_prompt(SENTENCE) + ANSWER] * 40, vocab_size=1000)
    lengths = {"max_prompt_length": 2 * ROW_BYTES, "max_length": 2 * ROW_BYTES, "seed": 1}
    file = str(files / f"rows-{size}.parquet")
    dataset = clock.time("open_s", lambda: kind(file, tokenizer, OmegaConf.create(lengths)))
    rows = iter(random.Random(SEED).choices(range(size), k=100 * repeats))
    figures = {"row_ms": 1e3 * measure_seconds(lambda: dataset[next(rows)], 100 * repeats)}
    figures["first_batch_ms"] = 1e3 * measure_seconds(lambda: next(iter(make_loader(dataset))), repeats)
    state = advance_to_middle(size)
    figures["state_kib"] = len(pickle.dumps(state)) / 2**10
    figures["resume_ms"] = 1e3 * measure_seconds(lambda: next(iter(make_loader(dataset, state))), repeats)
    table = getattr(dataset, table_name)
    figures["draw_ms"] = 1e3 * measure_seconds(lambda: draw_rows(table, max(1, size // 100), seed=1), repeats)
    return clock.figures | figures


def make_loader(dataset: Any, state: dict[str, Any] | None = None) -> Any:
    """Return a loader as verl's trainer makes it, at the beginning of an epoch or where the state was taken."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler

    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(1))
    loader = StatefulDataLoader(dataset, BATCH_ROWS, sampler=sampler, drop_last=True, collate_fn=list)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def advance_to_middle(size: int) -> dict[str, Any]:
    """Return the state of a loader that has read half of its rows, which here are only numbers."""
    loader = make_loader(range(size))
    for _ in zip(range(size // BATCH_ROWS // 2), loader, strict=False):
        pass
    return loader.state_dict()


# ---- evaluation


def measure_evaluation(size: int, files: Path, repeats: int) -> Figures:
    from generated import generate_catalog, list_dated_items, make_responses

    from convrec.lists.metrics import KS, list_metric_names, paired
    from convrec.lists.ranks import split_lines
    from recipes.evaluation.beyond_accuracy import make_context
    from recipes.evaluation.scoring import score_responses, summarise_rows
    from recipes.evaluation.split import read_split

    clock = Clock()
    catalog_file = files / f"catalog-{CATALOG_OF_ROWS}.parquet"
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


# ---- a batch


def measure_lists(size: int, files: Path, repeats: int) -> Figures:
    return measure_batch(num_lists=size, num_ranks=NUM_ITEMS, repeats=repeats)


def measure_ranks(size: int, files: Path, repeats: int) -> Figures:
    return measure_batch(num_lists=FEW_LISTS, num_ranks=size, repeats=repeats)


def measure_batch(num_lists: int, num_ranks: int, repeats: int) -> Figures:
    """Return the milliseconds of a batch's credit, and of its loss with the gradient."""
    import torch
    from bench_loss import EOS, KL, make_batch

    from convrec.rank_grpo.credit import CreditSettings, RankBatch, assign_credit
    from convrec.rank_grpo.policy_loss import BatchCounts, RankLossSettings, compute_rank_policy_loss

    responses_BT, mask_BT, table = make_batch("cpu", num_lists, num_ranks, RESPONSE_TOKENS_PER_RANK * num_ranks)
    generator = torch.Generator().manual_seed(SEED)
    returns_BK = torch.rand(num_lists, num_ranks, generator=generator)
    infos = [{"reward_extra_info": {"rank_returns": returns}} for returns in returns_BK.tolist()]
    prompts = [number // 8 for number in range(num_lists)]
    batch = RankBatch(prompts, torch.zeros(num_lists, dtype=torch.bool), infos, responses_BT, mask_BT)
    settings = CreditSettings(num_ranks, table, EOS)
    credit = assign_credit(batch, settings)
    old_BT = -2 * torch.rand(responses_BT.shape, generator=generator)
    new_BT = (old_BT + 0.05 * torch.randn(responses_BT.shape, generator=generator)).requires_grad_()

    def compute_loss() -> None:
        new_BT.grad = None
        loss, _ = compute_rank_policy_loss(
            new_BT,
            credit.advantages_BT,
            credit.units_BT,
            RankLossSettings(num_ranks, kl_coef=KL),
            BatchCounts(num_lists),
            old_log_prob_BT=old_BT,
            ref_log_prob_BT=old_BT,
        )
        loss.backward()

    compute_loss()  # the first call is slower
    return {
        "credit_ms": 1e3 * measure_seconds(lambda: assign_credit(batch, settings), 3 * repeats),
        "loss_ms": 1e3 * measure_seconds(compute_loss, 3 * repeats),
    }


# ---- all quantities


@dataclass(frozen=True)
class Quantity:
    """Something that grows.

    Attributes:
        unit: what a size counts.
        measure: (size, folder of the files, repeats) -> figures.
        modules: imported before, since neither their time nor their memory grows.
        prepare: writes the files that a size needs; run in a process of its own.
        smallest: size.
        largest: size.
    """

    unit: str
    measure: Callable[[int, Path, int], Figures]
    modules: tuple[str, ...]
    prepare: Callable[[int, Path], object] = lambda size, files: None
    smallest: int = 1000
    largest: int = LARGEST

    def list_sizes(self, largest: int) -> list[int]:
        """Return the powers of ten up to the largest size."""
        top = round(math.log10(min(self.largest, max(largest, self.smallest))))
        return [10**power for power in range(round(math.log10(self.smallest)), top + 1)]


def write_small_catalog(size: int, files: Path) -> None:
    if not (files / f"catalog-{CATALOG_OF_ROWS}.parquet").exists():
        write_catalog(CATALOG_OF_ROWS, files)


def write_catalog_and_model(size: int, files: Path) -> None:
    if not (files / f"catalog-{size}.parquet").exists():
        write_catalog(size, files)
    if not (files / "model").exists():
        write_model(files)


def write_catalog_and_trie(size: int, files: Path) -> None:
    """Write what a start of a service finds: also the encoded lines, as its first start leaves them."""
    from convrec.features.constrained.catalog_trie import catalog_trie
    from convrec.titles.catalog import load_catalog
    from convrec.titles.matching import Matcher

    write_catalog_and_model(size, files)
    if not list_tries(size, files):
        file = files / f"catalog-{size}.parquet"
        tokenizer, _ = load_model_tokenizer(files)
        catalog_trie(file, Matcher(load_catalog(file)), tokenizer, "\n", files)


def write_rows_once(size: int, files: Path) -> None:
    if not (files / f"rows-{size}.parquet").exists():
        write_rows(size, files)


READING = ("pyarrow.dataset", "pyarrow.parquet", "convrec.titles.matching")
TOKENIZER = ("transformers.models.auto.tokenization_auto", "transformers.generation.configuration_utils")
SERVING = (*READING, *TOKENIZER, "convrec.inference.recommender", "convrec.features.constrained.vllm_lists")
RETRIEVAL = (*READING, "sklearn.feature_extraction.text", "convrec.retrieval.folder")
DATASETS = (*READING, "convrec.training.dataset", "torchdata.stateful_dataloader", "recipes.tiny_model")
QUANTITIES = {
    "matching": Quantity("titles", measure_matching, (*READING, "bench_matching"), write_catalog_and_model),
    "trie": Quantity("titles", measure_trie, SERVING, write_catalog_and_model),
    "serving": Quantity("titles", measure_serving, SERVING, write_catalog_and_trie),
    "retrieval": Quantity("titles", measure_retrieval, RETRIEVAL, write_catalog_and_model),
    "corpus": Quantity("conversations of training", measure_corpus, RETRIEVAL, write_small_catalog),
    "rows": Quantity("rows of training", measure_rows, DATASETS, write_rows_once),
    "demonstrations": Quantity("rows of training", measure_demonstrations, DATASETS, write_rows_once),
    "evaluation": Quantity(
        "conversations",
        measure_evaluation,
        (*READING, "bench_matching", "recipes.evaluation.scoring"),
        write_small_catalog,
        largest=100_000,
    ),
    "lists": Quantity("lists of a batch", measure_lists, ("bench_loss",), smallest=10, largest=1000),
    "ranks": Quantity("ranks of a list", measure_ranks, ("bench_loss",), smallest=10, largest=1000),
}


def compute_slope(sizes: list[int], values: list[float]) -> float | None:
    """Return the slope of the values of the upper DECADES decades, None if there are too few above 0."""
    points = [(size, value) for size, value in zip(sizes, values, strict=True) if value > 0]
    points = [(size, value) for size, value in points if size * 10**DECADES >= sizes[-1]]
    if len(points) < 2:
        return None
    logs = [(math.log(size), math.log(value)) for size, value in points]
    return round(statistics.linear_regression(*zip(*logs, strict=True)).slope, 2)


def measure_growth(name: str, options: argparse.Namespace, files: Path) -> dict[str, Any]:
    """Measure a quantity at all sizes."""
    quantity = QUANTITIES[name]
    sizes = quantity.list_sizes(options.largest)
    points = []
    for size in sizes:
        run_child(name, size, options.repeats, files, "--prepare")
        points.append(json.loads(run_child(name, size, options.repeats, files)))
        print(json.dumps({name: size, **points[-1]}), file=sys.stderr, flush=True)
    figures = {figure: [point[figure] for point in points] for figure in points[0]}
    return {
        "unit": quantity.unit,
        "sizes": sizes,
        "figures": {
            figure: {"values": [float(f"{value:.3g}") for value in values], "slope": compute_slope(sizes, values)}
            for figure, values in figures.items()
        },
    }


def run_child(name: str, size: int, repeats: int, files: Path, *flags: str) -> str:
    """Run a size in a process of its own; return what it prints last."""
    command = [sys.executable, __file__, "--only", name, "--size", str(size), "--files", str(files)]
    command += ["--repeats", str(repeats), *flags]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} at {size}: status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout.strip().rpartition("\n")[2]


def measure_size(name: str, size: int, repeats: int, files: Path) -> Figures:
    """Measure one size in this process: the figures of the quantity, its wall time and its memory."""
    quantity = QUANTITIES[name]
    for module in quantity.modules:
        importlib.import_module(module)
    before = read_peak_mib()
    begin = time.monotonic()
    figures = quantity.measure(size, files, repeats)
    return figures | {"mib": read_peak_mib() - before, "wall_s": time.monotonic() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[*QUANTITIES], default=[*QUANTITIES], metavar="QUANTITY")
    parser.add_argument("--largest", type=int, default=LARGEST, help="size of catalog and rows (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--files", type=Path, help="folder for the generated files (a temporary one)")
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)  # of a child
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.size:
        quantity = QUANTITIES[options.only[0]]
        if options.prepare:
            quantity.prepare(options.size, options.files)
        else:
            print(json.dumps(measure_size(options.only[0], options.size, options.repeats, options.files)))
        return
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as temporary:
        files = options.files or Path(temporary)
        files.mkdir(parents=True, exist_ok=True)
        growth = {name: measure_growth(name, options, files) for name in options.only}
    print_report({"growth": growth})


if __name__ == "__main__":
    main()
