"""What the constraint costs a decoding step of vLLM: free and constrained batches in turns. Prints one JSON object.

python benchmarks/bench_constrained.py [--requests 256] [--tokens 24] [--rounds 5] [--hidden 256]

The model is made here: two layers under the vocabulary of bench_trie.py, whose 150,000 tokens are nearly all of its
cost; with a larger model the share of the constraint is smaller. The catalog has 7,404 generated titles, a request
excludes ten. A batch is `requests` prompts of a few tokens, decoded together for `tokens` steps. CPU seconds of the
process, in which the engine runs; `share` is constrained over free less 1, the median over the rounds.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "GLOO_SOCKET_IFNAME": "lo"}
os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
sys.path.insert(0, str(Path(__file__).parent))

from bench_trie import generated_catalog, tekken

from convrec.constrained.catalog_trie import build_catalog_trie, save_catalog_trie
from convrec.lists.matching import Matcher


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--requests", type=int, default=256)
    arguments.add_argument("--tokens", type=int, default=24)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--hidden", type=int, default=256)
    options = arguments.parse_args()
    rng = random.Random(0)
    tokenizer = tekken()
    lines = build_catalog_trie(Matcher(generated_catalog(7404, rng), "exact"), tokenizer, "\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_catalog_trie(folder / "trie.npz", lines)
        make_model(folder / "model", tokenizer, options.hidden)
        engine = start(folder, options.requests)
        report: dict[str, Any] = {"vocabulary": len(tokenizer), **vars(options)}
        for temperature in (0.0, 1.0):
            report["greedy" if temperature == 0 else "sampled"] = measure(engine, temperature, options, rng)
    print(json.dumps(report, indent=2))


def make_model(folder: Path, tokenizer: Any, hidden: int) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=hidden // 64,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def start(folder: Path, requests: int) -> Any:
    from vllm import LLM

    from convrec.constrained.vllm_processor import PROCESSOR, TRIE

    return LLM(
        model=str(folder / "model"),
        logits_processors=[PROCESSOR],
        additional_config={TRIE: str(folder / "trie.npz")},
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=requests,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )


def measure(engine: Any, temperature: float, options: argparse.Namespace, rng: random.Random) -> dict[str, float]:
    from vllm import SamplingParams

    from convrec.constrained.vllm_processor import EXCLUDE, ITEMS

    prompts = [{"prompt_token_ids": [rng.randrange(1000, 9000) for _ in range(4)]} for _ in range(options.requests)]

    def seconds(constrained: bool) -> float:
        sampling = [
            SamplingParams(
                temperature=temperature,
                max_tokens=options.tokens,
                ignore_eos=True,
                detokenize=False,
                extra_args={ITEMS: 20, EXCLUDE: rng.sample(range(7404), 10)} if constrained else None,
            )
            for _ in prompts
        ]
        start = time.process_time()
        engine.generate(prompts, sampling, use_tqdm=False)
        return time.process_time() - start

    seconds(False), seconds(True)  # warm
    free, constrained = zip(*((seconds(False), seconds(True)) for _ in range(options.rounds)), strict=True)
    return {
        "free, ms a step": statistics.median(free) / options.tokens * 1e3,
        "constrained, ms a step": statistics.median(constrained) / options.tokens * 1e3,
        "share": statistics.median(held / plain - 1 for held, plain in zip(constrained, free, strict=True)),
    }


if __name__ == "__main__":
    main()
