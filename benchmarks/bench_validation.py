"""Validation of many contexts against plain vLLM on the same prompts: tokens a second. Prints one JSON object.

python benchmarks/bench_validation.py --demo outputs/demo [--contexts 2050]

--demo is a folder that `make demo` has left. Greedy lists of its SFT model for that many distinct conversations:

plain       vLLM's offline engine, nothing else: one call of `generate`
evaluation  what `recipes.evaluate` calls, convrec.generation; both with the start of the engine
training    a validation of run_rank_grpo.sh: verl's agent loop, vLLM server and the reward (timing_s/testing)
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.checkpoints import resolve_model
from convrec.generation import generate
from convrec.runs import read_metrics

ROOT = Path(__file__).resolve().parent.parent
PROMPT, RESPONSE = 256, 100

PLAIN = """
import json, os, sys, time
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
from transformers import AutoTokenizer
from vllm import LLM, SamplingParams
model, rows, response = sys.argv[1], json.load(open(sys.argv[2])), int(sys.argv[3])
tokenizer = AutoTokenizer.from_pretrained(model)
ids = [tokenizer.apply_chat_template(row, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
       for row in rows]
engine = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=max(map(len, ids)) + response)
sampling = SamplingParams(temperature=0, max_tokens=response)
start = time.perf_counter()
outputs = engine.generate([{"prompt_token_ids": one} for one in ids], sampling, use_tqdm=False)
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "tokens": sum(len(one.outputs[0].token_ids) for one in outputs)}))
"""


def contexts(demo: Path, count: int) -> pa.Table:
    """Rows of the demo's tables with `count` distinct prompts that are not too long for the model."""
    tables = [pq.read_table(demo / "data" / f"{name}.parquet") for name in ("validation", "test", "train")]
    table, seen, keep = pa.concat_tables(tables), set(), []
    for place, prompt in enumerate(table["prompt"].to_pylist()):
        text = prompt[0]["content"]
        if text not in seen and len(text) < 2 * PROMPT and len(keep) < count:
            seen.add(text)
            keep.append(place)
    return table.take(keep)


def child(command: list[str], log: Path, **variables: str) -> str:
    with open(log, "wb") as errors:
        done = subprocess.run(command, env={**os.environ, **variables}, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with status {done.returncode}:\n{log.read_text()[-2000:]}")
    return done.stdout.decode().strip().splitlines()[-1] if done.stdout.strip() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, required=True)
    parser.add_argument("--contexts", type=int, default=2050)
    options = parser.parse_args()
    demo = options.demo.resolve()
    model = resolve_model(demo / "sft")
    rows = contexts(demo, options.contexts)
    prompts = rows["prompt"].to_pylist()
    report: dict[str, Any] = {"contexts": len(prompts)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prompts.json").write_text(json.dumps(prompts))
        plain = [sys.executable, "-c", PLAIN, model, str(folder / "prompts.json"), str(RESPONSE)]
        start = time.perf_counter()
        report["plain"] = json.loads(child(plain, folder / "plain.log"))
        report["plain, with its start"] = report["plain"] | {"seconds": time.perf_counter() - start}

        start = time.perf_counter()
        answers = generate(model, prompts, max_tokens=RESPONSE, max_prompt_tokens=PROMPT, progress=False)
        seconds = time.perf_counter() - start
        report["evaluation"] = {"seconds": seconds, "tokens": sum(len(answer.token_ids) for answer in answers)}

        pq.write_table(rows, folder / "contexts.parquet")
        files = {"TRAIN_FILE": demo / "data" / "train.parquet", "VAL_FILE": folder / "contexts.parquet"}
        files |= {"CATALOG_FILE": demo / "data" / "catalog.parquet", "MODEL_PATH": demo / "sft"}
        files |= {"SAVE_PATH": folder / "run", "PYTHON": sys.executable}
        sizes = {"TRAIN_BATCH_SIZE": 2, "ROLLOUT_N": 2, "TOTAL_STEPS": 1, "TEST_FREQ": 1, "SAVE_FREQ": -1}
        sizes |= {"MAX_PROMPT_LENGTH": PROMPT, "MAX_RESPONSE_LENGTH": RESPONSE}
        variables = {key: str(value) for key, value in (files | sizes).items()}
        child(["bash", "run_rank_grpo.sh", "trainer.val_before_train=false"], folder / "run.log", **variables)
        seconds = next(row["timing_s/testing"] for row in read_metrics(folder / "run") if "timing_s/testing" in row)
        report["training"] = {"seconds": seconds, "tokens": report["plain"]["tokens"]}
    for part in list(report.values())[1:]:
        part["tokens a second"] = round(part["tokens"] / part["seconds"])
    for kind, other in (("evaluation", "plain, with its start"), ("training", "plain")):
        report[f"{kind} / plain"] = round(report[kind]["tokens a second"] / report[other]["tokens a second"], 3)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
