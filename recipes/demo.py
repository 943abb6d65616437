"""The whole method, small, on a CPU: sample data, a tiny model, SFT, Rank-GRPO, evaluation before and after, a report.

    make demo            (or: convrec demo [--out outputs/demo])

Every part is the real one: what run_sft.sh and run_rank_grpo.sh start, which drives verl, Ray, FSDP2 and vLLM. An
interrupted demo continues where it was; a finished one is left alone.

OUT/summary.json:
    models             {"popularity" | "retrieval" | "sft" | "rank_grpo" | "fused": {"recall@5": {"mean", "se"}, ...,
                       "ndcg@20": {"mean", "se"}, "catalog_hit_ratio", "n"}}: test split, protocol `paper`, standard
                       errors by bootstrap; fused: the lists of Rank-GRPO and of the retrieval made into one
    gain               rank_grpo minus sft, row by row: {"recall@20" | "ndcg@20" | ...: {"mean", "se"}, "n"}
    seconds            {phase: seconds}, summed over the starts of an interrupted demo
    versions           {package: version} and "python"
    settings           what was trained
    report             path of the HTML report
"""

import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from convrec.errors import UserError
from convrec.files import read_json, write_json
from convrec.generation.generate import engines_kept
from convrec.options import command
from convrec.report.page import gain_text, table_row, text_table
from convrec.runs.folder import latest_step
from convrec.shipped import INSTALLED
from recipes.cluster.jobs import say
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.single import evaluate
from recipes.experiments.local_runs import evaluation_of, train
from recipes.experiments.matrix_file import read_matrix
from recipes.experiments.matrix_runs import MatrixRun, runs_of
from recipes.launch.variables import VARIABLES
from recipes.options.demo import DemoOptions
from recipes.report import report as write_report
from recipes.retrieval import fit_retrieval
from recipes.tiny_model import make_tiny_model, read_texts, read_titles

OUT = DemoOptions.out  # `make serve` serves what is there
KS = (5, 10, 20)
PACKAGES = ("verl", "ray", "torch", "vllm", "transformers", "TransferQueue", "hydra-core", "pyarrow")


def schedule(steps: int, validations: int) -> dict[str, str]:
    """Save at thirds, so that an interruption costs little. With six validations what is saved has been validated."""
    return {
        "TOTAL_STEPS": str(steps),
        "SAVE_FREQ": str(max(1, steps // 3)),
        "TEST_FREQ": str(max(1, steps // validations)),
    }


class DemoSeconds:
    """The seconds of all starts of this demo: OUT/progress.json."""

    def __init__(self, out: Path) -> None:
        self.path = out / "progress.json"
        saved = read_json(self.path) if self.path.exists() else {}
        self.seconds: dict[str, float] = saved.get("seconds", {})

    @contextmanager
    def phase(self, name: str, text: str) -> Iterator[None]:
        say(f"[{name}] {text}")
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - start, 1)
            write_json(self.path, {"seconds": self.seconds})


def experiment(out: Path, *steps: int) -> tuple[list[MatrixRun], dict[str, Any]]:
    """SFT and Rank-GRPO, of so many steps, and how they are evaluated: demo.yaml."""
    os.environ["DEMO"] = str(out)
    if {'"', "\\", "$"} & set(str(out)):
        raise UserError(f"--out {out}: a path without quotes, backslashes and dollar signs, since YAML has it")
    matrix = read_matrix(Path(__file__).with_name("demo.yaml"))
    pairs = zip(runs_of(matrix), map(schedule, steps, (2, 6)), strict=True)
    return [replace(run, variables={**run.variables, **more}) for run, more in pairs], matrix.evaluate


def run(out: Path, sft_steps: int = DemoOptions.sft_steps, rl_steps: int = DemoOptions.rl_steps) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    usage = DemoSeconds(out)
    data, start, retrieval = out / "data", out / "model", out / "retrieval"
    (sft, rl), evaluation = experiment(out, sft_steps, rl_steps)
    for name in {variable.name for variable in VARIABLES} - {"LOGGER"} | {"RAY_ADDRESS"}:
        os.environ.pop(name, None)  # what the caller's shell says to other runs
    if not data.exists():
        with usage.phase("data", "conversations about real films with generated tastes"):
            subprocess.run([sys.executable, "-m", "recipes", "data", "sample", "--out", str(data)], check=True)
    if not start.exists():
        with usage.phase("model", "a tiny Qwen2 and its tokenizer, made on the spot"):
            from transformers.utils.logging import disable_progress_bar

            disable_progress_bar()  # of a file that is written at once
            make_tiny_model(start, read_texts([data]), read_titles([data]))
    if latest_step(out / sft.name) < sft_steps:
        with usage.phase("sft", f"SFT on an imperfect teacher's lists, {sft_steps} steps"):
            train(sft, out)
    fused = {"retrieval": str(retrieval)}
    chosen_on = {"data": str(data / "validation.parquet"), "out": str(out / "evaluation" / "weights")}

    def scored(run: MatrixRun, **further: Any) -> dict[str, Any]:
        return evaluate(EvaluationOptions(**evaluation_of(run, out, evaluation | further)))

    def beside_training() -> dict[str, Any]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # of this thread, and of the engine it starts
        if not retrieval.exists():
            fit_retrieval([data / "train.parquet"], data / "validation.parquet", data / "catalog.parquet", retrieval)
        return scored(sft, progress=False)

    with ThreadPoolExecutor(1) as beside, engines_kept():
        of_sft = beside.submit(beside_training)  # while Rank-GRPO starts, which leaves a core idle
        if latest_step(out / rl.name) < rl_steps:
            with usage.phase("rank_grpo", f"Rank-GRPO, {rl_steps} steps of 16 conversations x 8 lists"):
                train(rl, out)
        with usage.phase("evaluation", "greedy lists of both models for the test split, and of similar conversations"):
            sft_metrics = of_sft.result()
            scored(rl, **fused, **chosen_on, weigh=True, against=None)  # in SFT's engine
            rl_metrics = scored(rl, **fused)
    with usage.phase("report", "tables, curves, conversations"):
        evaluations = {"SFT": out / "evaluation" / "sft", "Rank-GRPO": out / "evaluation" / "rank_grpo"}
        report = write_report([out / "sft", out / "rank_grpo"], out / "report.html", evaluations)
    of_sft, of_rl = (metrics["results"]["paper"] for metrics in (sft_metrics, rl_metrics))
    results = {name: of_rl[name] for name in ("popularity", "retrieval")}
    results |= {"sft": of_sft["model"], "rank_grpo": of_rl["model"], "fused": of_rl["fused"]}
    shown = (*(f"{metric}@{k}" for metric in ("recall", "ndcg") for k in KS), "catalog_hit_ratio", "n")
    gain = {key: value for key, value in rl_metrics["paired"].items() if key != "against"}
    summary = {
        "models": {name: {key: result[key] for key in shown} for name, result in results.items()},
        "gain": gain,
        "seconds": usage.seconds,
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "settings": {run.name: run.variables for run in (sft, rl)},
        "report": str(report),
    }
    write_json(out / "summary.json", summary)
    say("\n" + text_table([table_row(name, result, KS) for name, result in results.items()]))
    for name in ("recall@20", "ndcg@20"):
        say(f"rank_grpo minus sft, {name}: {gain_text(gain[name])}, row by row")
    say(f"{sum(usage.seconds.values()) / 60:.1f} minutes\nreport: {report}\nsummary:")
    return out / "summary.json"


def how_to_talk(out: Path) -> str:
    """And, last, what a user gets of the model and the retrieval together, where the demo had both."""
    serve = f"convrec serve --model demo={out / 'rank_grpo'} --catalog {out / 'data' / 'catalog.parquet'}"
    told = f"talk to the model in a browser: {'make serve' if out == OUT and not INSTALLED else serve}"
    models = read_json(out / "summary.json")["models"]
    if "fused" not in models:
        return told
    both, model, alone = (f"{models[name]['ndcg@20']['mean']:.3f}" for name in ("fused", "rank_grpo", "retrieval"))
    told += f"\nmodel and retrieval together: NDCG@20 {both} (the model alone {model}, the retrieval alone {alone}): "
    return f"{told}{serve} --retrieval {out / 'retrieval'}"


@command(DemoOptions)
def main(options: DemoOptions) -> int:
    out = options.out
    summary = out / "summary.json"
    if summary.exists():
        say(f"{out} holds a finished demo, which is not overwritten. To start anew: rm -r {out} && make demo")
        print(summary, flush=True)
        say(how_to_talk(out))
        return 0
    free = shutil.disk_usage(out.parent if out.parent.exists() else Path.cwd()).free
    if free < 2 * 2**30:
        say(f"error: {out}: the demo needs 2 GiB of disk, {free / 2**30:.1f} GiB are free")
        return 2
    try:
        print(run(out.resolve(), options.sft_steps, options.rl_steps), flush=True)
        say(how_to_talk(out))
    except UserError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the same command resumes")
        return 130
    return 0
