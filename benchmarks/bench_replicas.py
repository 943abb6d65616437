"""One and two replicas of our generation against Ray Data's LLM batch inference. Prints one JSON object.

python benchmarks/bench_replicas.py --demo outputs/demo [--contexts 2050] [--rounds 3] [--replicas 1 2]

--demo is a folder that `make demo` has left. Greedy lists of its SFT model for that many distinct conversations, on a
CPU whose cores the replicas share, each kind in a process of its own and in turns. `start` is what a single prompt
takes: imports, Ray where it is used, and the engines; `lists` what all of them take beyond that.

ours      convrec.inference.generate, as evaluation calls it
ray data  ray.data.llm.build_processor on a local Ray, an engine of one CPU a replica, the same engine settings
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_validation import PROMPT, RESPONSE, VLLM, contexts
from benchmarks.machine import print_report
from benchmarks.processes import run_logged

KINDS = ("ours", "ray data")
BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path)
    parser.add_argument("--contexts", type=int, default=2050)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        answer_in_this_process(*options.child)
        return
    from convrec.checkpoints.models import resolve_model

    model = str(Path(resolve_model(options.demo / "sft")).resolve())
    prompts = contexts(options.demo, options.contexts)["prompt"].to_pylist()
    seconds: dict[str, list[dict[str, float]]] = {}
    texts: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.rounds):
            for replicas in options.replicas:
                for kind in KINDS:
                    label = f"{kind}, {replicas}"
                    start, texts[label] = whole, _ = run(Path(name), kind, replicas, model, prompts[:1])
                    if len(prompts) > 1:
                        whole, texts[label] = run(Path(name), kind, replicas, model, prompts)
                    seconds.setdefault(label, []).append({"start": start, "lists": round(whole - start, 1)})
                    print(number, label, seconds[label][-1], file=sys.stderr)
    first = next(iter(texts.values()))
    report = {
        label: {part: statistics.median(one[part] for one in rounds) for part in ("start", "lists")}
        | {"texts unlike those of the first": sum(a != b for a, b in zip(texts[label], first, strict=True))}
        for label, rounds in seconds.items()
    }
    print_report({"contexts": len(prompts), "medians, s": report, "rounds": seconds})


def run(folder: Path, kind: str, replicas: int, model: str, prompts: list[Any]) -> tuple[float, list[str]]:
    """Seconds of the process from its start to its end, and the texts in the order of the prompts."""
    (folder / "prompts.json").write_text(json.dumps(prompts))
    names = [str(folder / "prompts.json"), str(folder / "texts.json")]
    start = time.perf_counter()
    run_logged([sys.executable, __file__, "--child", kind, str(replicas), model, *names], folder / "log", **VLLM)
    return round(time.perf_counter() - start, 1), json.loads((folder / "texts.json").read_text())


# ---- in a process of its own


def answer_in_this_process(kind: str, replicas: str, model: str, prompts: str, result: str) -> None:
    answers = with_ours if kind == "ours" else with_ray_data
    Path(result).write_text(json.dumps(answers(int(replicas), model, json.loads(Path(prompts).read_text()))))


def with_ours(replicas: int, model: str, prompts: list[Any]) -> list[str]:
    from convrec.inference.engines.placement import Placement
    from convrec.inference.generate import generate

    placement = Placement(replicas)
    answers = generate(
        model, prompts, max_tokens=RESPONSE, max_prompt_tokens=PROMPT, placement=placement, progress=False
    )
    return [answer["text"] for answer in answers]


def with_ray_data(replicas: int, model: str, prompts: list[Any]) -> list[str]:
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    # A replica has four actors, one of which is the engine. The tasks around them wait for ever if those take all CPUs.
    ray.init(num_cpus=4 * replicas + 4, include_dashboard=False, logging_level="warning")
    cores = len(os.sched_getaffinity(0))
    config = vLLMEngineProcessorConfig(
        model_source=model,
        engine_kwargs={"dtype": "float32", "enforce_eager": True, "max_model_len": PROMPT + RESPONSE},
        runtime_env={"env_vars": {"OMP_NUM_THREADS": str(max(1, cores // replicas)), "TORCH_COMPILE_DISABLE": "1"}},
        concurrency=(replicas, replicas),
        batch_size=BATCH,
        placement_group_config={"bundle_per_worker": {"CPU": 1}},
        log_engine_metrics=False,
    )
    sampling = {"temperature": 0.0, "max_tokens": RESPONSE}
    processor = build_processor(
        config,
        preprocess=lambda row: {"messages": row["messages"], "sampling_params": sampling, "place": row["place"]},
        postprocess=lambda row: {"place": row["place"], "text": row["generated_text"]},
    )
    rows = [{"place": place, "messages": messages} for place, messages in enumerate(prompts)]
    blocks = max(1, len(rows) // BATCH)
    found = processor(ray.data.from_items(rows, override_num_blocks=blocks)).take_all()
    return [row["text"] for row in sorted(found, key=lambda row: row["place"])]


if __name__ == "__main__":
    main()
