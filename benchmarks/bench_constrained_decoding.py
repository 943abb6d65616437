"""vLLM's decoding of constrained lists beside free ones, on this machine's CPU or GPU. Prints JSON.

python benchmarks/bench_constrained_decoding.py [--lists 256] [--hidden 896] [--layers 24] [--tokens 96] [--repeats 5]

A Qwen2 of that size with random weights and 151,936 words. The tokenizer is that of generated.make_tekken
(--tokenizer FOLDER: that one), the catalog 7,404 generated titles (--catalog: that one). Two engines in processes of
their own take turns:

free         vLLM without a logits processor
constrained  with this program's, each list with 10 items excluded; `prepared but free`: the same engine without asking

Each writes `--lists` lists at once to `--tokens` tokens, none ends earlier. A step is one token of all lists: medians
of (seconds - seconds for one token) / (tokens - 1), sampled with log-probs of all lists, of an eighth and of none, and
greedy; ratios are medians of the rounds' ratios.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.generated import make_catalog_trie
from benchmarks.machine import print_report
from convrec.features.constrained.catalog_trie import save_catalog_trie
from convrec.inference.engines.engine_settings import disable_compiler, engine_settings

WORDS, PROMPT, EXCLUDED = 151_936, 64, 10
ALL, NONE = 1, 0
# name -> temperature, and of every how many lists one reports log-probs
SAMPLINGS = {
    "sampled": (1.0, ALL),
    "sampled, an eighth with log-probs": (1.0, 8),
    "sampled, no log-probs": (1.0, NONE),
    "greedy": (0.0, NONE),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--catalog")
    arguments.add_argument("--tokenizer")
    sizes = {"items": 7404, "lists": 256, "hidden": 896, "layers": 24, "tokens": 96, "repeats": 5, "seed": 3407}
    for name, default in sizes.items():
        arguments.add_argument(f"--{name}", type=int, default=default)
    arguments.add_argument("--gpu-memory", type=float, default=0.3, help="share for each engine")
    options = arguments.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM and gloo say things on the standard output, which is to be JSON alone
    rng = random.Random(options.seed)
    tokenizer, films, catalog = make_catalog_trie(options.catalog, options.tokenizer, options.items, rng)

    with tempfile.TemporaryDirectory() as folder:
        trie_file = Path(folder) / "catalog.npz"
        save_catalog_trie(trie_file, catalog)
        model = write_config(Path(folder) / "model", options.hidden, options.layers)
        report = compare(options, model, trie_file, len(films), rng)
    report |= {"items": catalog.num_items, "tokenizer": len(tokenizer), "lists": options.lists, "words": WORDS}
    print_report(report, out)


def write_config(folder: Path, hidden: int, layers: int) -> Path:
    from transformers import Qwen2Config

    heads = hidden // 64
    kv_heads = 2 if heads % 2 == 0 else 1
    config = Qwen2Config(
        vocab_size=WORDS,
        hidden_size=hidden,
        intermediate_size=hidden * 4864 // 896 // 8 * 8,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        architectures=["Qwen2ForCausalLM"],
    )
    config.save_pretrained(folder)
    return folder


def compare(
    options: argparse.Namespace, model: Path, trie_file: Path, items: int, rng: random.Random
) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    from convrec.features.constrained.vllm_lists import EXCLUDE, ITEMS, PROCESSOR, TRIE

    on_cpu, settings = engine_settings(1)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    if not on_cpu:
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        settings |= {"dtype": "bfloat16", "gpu_memory_utilization": options.gpu_memory}
    settings |= {
        "model": str(model),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 1024,
        "max_num_seqs": options.lists,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "seed": 0,
    }
    with disable_compiler(on_cpu):
        engines = {
            "free": LLM(**settings),
            "constrained": LLM(**settings, logits_processors=[PROCESSOR], additional_config={TRIE: str(trie_file)}),
        }
    engines["prepared but free"] = engines["constrained"]
    prompts = [{"prompt_token_ids": rng.choices(range(1000, 100_000), k=PROMPT)} for _ in range(options.lists)]

    def seconds(way: str, sampling: tuple[float, int], tokens: int) -> float:
        temperature, every = sampling
        asked = []
        for number in range(len(prompts)):
            extra = {ITEMS: 20, EXCLUDE: rng.sample(range(items), EXCLUDED)} if way == "constrained" else None
            common = {"max_tokens": tokens, "ignore_eos": True, "detokenize": False, "extra_args": extra}
            log_probs = 0 if every and number % every == 0 else None
            asked.append(SamplingParams(**common, temperature=temperature, logprobs=log_probs))
        start = time.perf_counter()
        done = engines[way].generate(prompts, asked, use_tqdm=False)
        spent = time.perf_counter() - start
        assert all(len(one.outputs[0].token_ids) == tokens for one in done)
        return spent

    report: dict[str, Any] = {}
    for name, sampling in SAMPLINGS.items():
        milliseconds: dict[str, list[float]] = {way: [] for way in engines}
        for round_ in range(options.repeats + 1):  # the first round is left out
            for way, found in milliseconds.items():
                one = seconds(way, sampling, 1)
                step = (seconds(way, sampling, options.tokens) - one) / (options.tokens - 1) * 1e3
                if round_:
                    found.append(step)
        report[name] = {
            "milliseconds a step": {way: statistics.median(found) for way, found in milliseconds.items()},
            "ratio to free": {
                way: statistics.median(a / b for a, b in zip(found, milliseconds["free"], strict=True))
                for way, found in milliseconds.items()
            },
        }
    return report


if __name__ == "__main__":
    main()
