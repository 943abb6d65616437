"""Validation of many contexts against plain vLLM on the same prompts: tokens a second. Prints one JSON object.

python benchmarks/bench_validation.py --demo outputs/demo [--contexts 2050] [--rounds 3]

--demo is a folder that `make demo` has left. Greedy lists of its SFT model for that many distinct conversations, on a
CPU, one after the other in each round; the ratios are medians over the rounds:

plain       vLLM's offline engine, nothing else: one call of `generate`, the engine's start left out
evaluation  what `convrec evaluate` calls, convrec.inference.generate, in an engine that a first prompt has started
training    a validation of run_rank_grpo.sh: prompts to metrics, reward included (timing_s/testing)
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import print_report
from benchmarks.processes import run_logged
from benchmarks.training_run import TRAIN_RANK_GRPO, WITHOUT_VALIDATION, make_data_variables
from convrec.checkpoints.models import resolve_model
from convrec.inference.generate import generate, reuse_engines
from convrec.runs.folder import read_metrics

PROMPT, RESPONSE = 256, 100
CALLS = 3  # in a process, of plain vLLM and of training, in a round

# Threads that sleep while they wait, and one for each core: as in our own processes.
THREADS = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "OMP_WAIT_POLICY": "PASSIVE"}
VLLM = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
PLAIN = """
import json, sys, time
from transformers import AutoTokenizer
from vllm import LLM, SamplingParams
model, prompts, result, response, repeats = *sys.argv[1:4], *map(int, sys.argv[4:])
tokenizer = AutoTokenizer.from_pretrained(model)
ids = [tokenizer.apply_chat_template(row, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
       for row in json.load(open(prompts))]
engine = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=max(map(len, ids)) + response)
sampling, seconds = SamplingParams(temperature=0, max_tokens=response), []
for _ in range(repeats):
    engine.reset_prefix_cache()
    start = time.perf_counter()
    outputs = engine.generate([{"prompt_token_ids": one} for one in ids], sampling, use_tqdm=False)
    seconds.append(time.perf_counter() - start)
tokens = sum(len(one.outputs[0].token_ids) for one in outputs)
json.dump({"seconds": seconds, "tokens": tokens}, open(result, "w"))
"""


def contexts(demo: Path, count: int) -> pa.Table:
    """Rows of the demo's tables with `count` distinct prompts that are not too long for the model."""
    tables = [pq.read_table(demo / "data" / f"{name}.parquet") for name in ("validation", "test", "train")]
    table = pa.concat_tables(tables)
    seen: set[str] = set()
    keep: list[int] = []
    for place, prompt in enumerate(table["prompt"].to_pylist()):
        text = prompt[0]["content"]
        if text not in seen and len(text) < 2 * PROMPT and len(keep) < count:
            seen.add(text)
            keep.append(place)
    return table.take(keep)


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, required=True)
    parser.add_argument("--contexts", type=int, default=2050)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ.update(THREADS | VLLM)
    demo = options.demo.resolve()
    model = resolve_model(demo / "sft")
    rows = contexts(demo, options.contexts)
    if len(rows) < options.contexts:
        raise SystemExit(f"{demo} has {len(rows)} distinct conversations that fit, not {options.contexts}")
    prompts = rows["prompt"].to_pylist()
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as name:
            plain, tokens = plain_vllm(Path(name), model, prompts)
            evaluation, same = evaluate(model, prompts)
            if same != tokens:
                raise SystemExit(f"plain vLLM made {tokens} tokens, convrec evaluate {same}: not the same work")
            training = validate(Path(name), demo, rows)
        rounds.append({"plain": plain, "evaluation": evaluation, "training": training})
    report: dict[str, Any] = {"contexts": len(prompts), "tokens": tokens}
    report["seconds of each round"] = [{kind: round(value, 2) for kind, value in one.items()} for one in rounds]
    report["tokens a second"] = {
        kind: round(tokens / statistics.median(one[kind] for one in rounds)) for kind in rounds[0]
    }
    for kind in ("evaluation", "training"):
        report[f"{kind} / plain"] = round(statistics.median(one["plain"] / one[kind] for one in rounds), 3)
    print_report(report)


def plain_vllm(folder: Path, model: str, prompts: list[Any]) -> tuple[float, int]:
    """Seconds, median of CALLS calls, and tokens of one."""
    (folder / "prompts.json").write_text(json.dumps(prompts))
    paths = [model, str(folder / "prompts.json"), str(folder / "plain.json")]
    run_logged([sys.executable, "-c", PLAIN, *paths, str(RESPONSE), str(CALLS)], folder / "plain.log")
    found = json.loads((folder / "plain.json").read_text())
    return statistics.median(found["seconds"]), found["tokens"]


def evaluate(model: str, prompts: list[Any]) -> tuple[float, int]:
    def answers(some: list[Any]) -> list[Any]:
        return generate(model, some, max_tokens=RESPONSE, max_prompt_tokens=PROMPT, progress=False)

    with reuse_engines():
        answers(prompts[:1])
        seconds, found = seconds_of(lambda: answers(prompts))
    return seconds, sum(len(answer["token_ids"]) for answer in found)


def validate(folder: Path, demo: Path, rows: pa.Table) -> float:
    """Seconds, median of CALLS validations of a run with a learning rate that changes nothing: plain's lists."""
    pq.write_table(rows, folder / "contexts.parquet")
    files: dict[str, Any] = make_data_variables(demo / "data") | {"VAL_FILE": folder / "contexts.parquet"}
    files |= {
        "MODEL_PATH": demo / "sft",
        "SAVE_PATH": folder / "run",
        "PYTHON": sys.executable,
        "LOGGER": "console,file",
    }
    sizes: dict[str, Any] = {"TRAIN_BATCH_SIZE": 2, "ROLLOUT_N": 2, "TOTAL_STEPS": CALLS, "TEST_FREQ": 1, "LR": 1e-30}
    sizes |= {"MAX_PROMPT_LENGTH": PROMPT, "MAX_RESPONSE_LENGTH": RESPONSE, "SAVE_FREQ": CALLS + 1}
    variables = {key: str(value) for key, value in (files | sizes).items()}
    run_logged([*TRAIN_RANK_GRPO, WITHOUT_VALIDATION], folder / "run.log", **variables)
    return statistics.median(
        row["timing_s/testing"] for row in read_metrics(folder / "run") if "timing_s/testing" in row
    )


if __name__ == "__main__":
    main()
