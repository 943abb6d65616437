"""The whole method, small, on a CPU: sample data, a model, SFT, Rank-GRPO, evaluation before and after, a report.

    make demo            (or: convrec demo [--out outputs/demo]): with a tiny, newly initialized model
    convrec demo --pretrained [MODEL] [--out outputs/pretrained]: with a pretrained one, also evaluated zero-shot

Trainings are those of run_sft.sh and run_rank_grpo.sh, with verl, Ray, FSDP2 and vLLM. An interrupted demo resumes; a
finished one is not run again. recipes/demos/ has the sizes.

OUT/summary.json:
    models             {"popularity" | "retrieval" | "zero_shot" | "sft" | "rank_grpo" | "fused": {"recall@5": {"mean",
                       "se"}, ..., "ndcg@20": {"mean", "se"}, "catalog_hit_ratio", "n"}}: test split, protocol `paper`,
                       standard errors by bootstrap, up to the length of the lists; zero_shot: the pretrained model
                       before training; fused: the lists of Rank-GRPO fused with those of the retrieval
    gain               rank_grpo minus sft, paired by row: {"recall@20" | "ndcg@20" | ...: {"mean", "se"}, "n"}
    gains              the same for each pair, with the name of the reference: {"sft": {"minus": "zero_shot", ...},
                       "rank_grpo": {"minus": "sft", ...}, "fused": {"minus": "retrieval", ...}}
    seconds            {phase: seconds}, summed over the starts of an interrupted demo
    versions           {package: version} and "python"
    settings           variables of each training
    report             path of the HTML report
"""

import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.base.files import read_json, write_json
from convrec.base.options import command
from convrec.base.shipped import INSTALLED
from convrec.inference.generate import reuse_engines
from convrec.report.page import format_gain, format_table, make_table_row
from convrec.runs.folder import latest_step
from recipes.cluster.jobs import say
from recipes.demos.pretrained import choose_source, write_model
from recipes.demos.sizes import PRETRAINED, TINY, Demo, read_runs
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.single import evaluate
from recipes.experiments.local_runs import make_evaluation_options, train
from recipes.experiments.matrix_runs import MatrixRun
from recipes.launch.variables import VARIABLES
from recipes.options.demo import DemoOptions
from recipes.planning.memory import available_bytes
from recipes.report import report as write_report
from recipes.retrieval import fit_retrieval
from recipes.tiny_model import make_tiny_model, read_texts, read_titles

PACKAGES = ("verl", "ray", "torch", "vllm", "transformers", "TransferQueue", "hydra-core", "pyarrow")
GIB = 2**30


class DemoSeconds:
    """Seconds of each phase over all starts of a demo: OUT/progress.json."""

    def __init__(self, out: Path) -> None:
        self.path = out / "progress.json"
        saved = read_json(self.path) if self.path.exists() else {}
        self.seconds: dict[str, float] = saved.get("seconds", {})

    @contextmanager
    def phase(self, name: str, text: str) -> Iterator[None]:
        """Announce a phase, and add its seconds to those of earlier starts, also after an error.

        Args:
            name: its key in OUT/progress.json.
            text: what it does.
        """
        say(f"[{name}] {text}")
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - start, 1)
            write_json(self.path, {"seconds": self.seconds})


class DemoRun:
    """A demo in its folder, one method per phase. Existing results are not made again."""

    def __init__(self, demo: Demo, out: Path) -> None:
        self.demo = demo
        self.out = out
        self.data = out / "data"
        self.model = out / "model"
        self.retrieval = out / "retrieval"
        self.zero_shot = out / "evaluation" / "zero_shot"  # of the pretrained demo alone
        self.sft, self.rl, self.evaluation = read_runs(demo, out)
        self.usage = DemoSeconds(out)

    def run(self, source: str | None) -> Path:
        """Run all phases, and return the path of the summary.

        Args:
            source: where a pretrained model comes from; None for the tiny one.

        Raises:
            UserError: A phase fails.
        """
        self.make_data()
        self.make_model(source)
        metrics = {}
        if self.demo.is_pretrained:
            metrics["zero_shot"] = self.evaluate_start()
        self.train_sft()
        with ThreadPoolExecutor(1) as executor, reuse_engines():
            sft_metrics = executor.submit(self.prepare_during_training)
            self.train_rank_grpo()
            with self.usage.phase("evaluation", "greedy lists and retrieval for the test split"):
                metrics["sft"] = sft_metrics.result() or self.evaluate(self.sft, against=str(self.zero_shot))
                metrics["rank_grpo"] = self.evaluate_fused()
        with self.usage.phase("report", "tables, curves, conversations"):
            report = self.write_report()
        return self.summarize(metrics, report)

    def make_data(self) -> None:
        """Make the sample data."""
        if self.data.exists():
            return
        with self.usage.phase("data", "conversations about real films with generated tastes"):
            sample = [sys.executable, "-m", "recipes", "data", "sample", *self.demo.sample, "--out", str(self.data)]
            subprocess.run(sample, check=True)

    def make_model(self, source: str | None) -> None:
        """Make the tiny model, or convert a pretrained one."""
        if self.model.exists():
            return
        if source is None:
            with self.usage.phase("model", "a tiny, newly initialized Qwen2 with its own tokenizer"):
                from transformers.utils.logging import disable_progress_bar

                disable_progress_bar()  # for a file that takes no time to write
                make_tiny_model(self.model, read_texts([self.data]), read_titles([self.data]))
        else:
            with self.usage.phase("model", f"pretrained: {source}"):
                write_model(source, self.model)

    def evaluate_start(self) -> dict[str, Any]:
        """Return the metrics of the pretrained model before training."""
        with self.usage.phase("zero_shot", "greedy lists of the pretrained model for the test split"):
            return evaluate(EvaluationOptions(model=str(self.model), out=str(self.zero_shot), **self.evaluation))

    def train_sft(self) -> None:
        """Train by SFT."""
        self.train(self.sft, self.demo.sft_steps, "SFT on an imperfect teacher's lists, {steps} steps")

    def train_rank_grpo(self) -> None:
        """Train by Rank-GRPO."""
        batch, lists = (self.rl.variables[name] for name in ("TRAIN_BATCH_SIZE", "ROLLOUT_N"))
        text = f"Rank-GRPO, {{steps}} steps of {batch} conversations x {lists} lists"
        self.train(self.rl, self.demo.rl_steps, text)

    def train(self, run: MatrixRun, steps: int, text: str) -> None:
        """Train a run unless it has reached its last step.

        Args:
            run: the run.
            steps: the number of its last step.
            text: of the phase, with {steps}.
        """
        if latest_step(self.out / run.name) >= steps:
            return
        with self.usage.phase(run.name, text.format(steps=steps)):
            train(run, self.out)

    def prepare_during_training(self) -> dict[str, Any] | None:
        """Fit the retrieval and evaluate SFT while Rank-GRPO starts, which leaves a core idle.

        Returns:
            SFT's metrics; None for the pretrained demo, whose evaluations would slow down the training.
        """
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # for this thread and the engine that it starts
        if not self.retrieval.exists():
            files = (self.data / f"{name}.parquet" for name in ("train", "validation", "catalog"))
            train_file, validation_file, catalog_file = files
            fit_retrieval([train_file], validation_file, catalog_file, self.retrieval)
        return None if self.demo.is_pretrained else self.evaluate(self.sft, progress=False)

    def evaluate_fused(self) -> dict[str, Any]:
        """Return the metrics of Rank-GRPO, alone and fused with the retrieval; validation rows set the weight."""
        fused = {"retrieval": str(self.retrieval)}
        rows = {"data": str(self.data / "validation.parquet"), "out": str(self.out / "evaluation" / "weights")}
        self.evaluate(self.rl, **fused, **rows, weigh=True, against=None)
        return self.evaluate(self.rl, **fused)

    def evaluate(self, run: MatrixRun, **changes: Any) -> dict[str, Any]:
        """Return the metrics of a run on the test split.

        Args:
            run: a training run, or a given model.
            **changes: options other than the demo's.
        """
        return evaluate(EvaluationOptions(**make_evaluation_options(run, self.out, self.evaluation | changes)))

    def write_report(self) -> Path:
        """Write the HTML report, and return its path."""
        folders = {"Zero-shot": "zero_shot"} if self.demo.is_pretrained else {}
        folders |= {"SFT": "sft", "Rank-GRPO": "rank_grpo"}
        evaluations = {name: self.out / "evaluation" / folder for name, folder in folders.items()}
        return write_report([self.out / "sft", self.out / "rank_grpo"], self.out / "report.html", evaluations)

    def summarize(self, metrics: Mapping[str, Mapping[str, Any]], report: Path) -> Path:
        """Write summary.json, and print the table.

        Args:
            metrics: sft, rank_grpo and, in the pretrained demo, zero_shot -> the content of its metrics.json.
            report: path of the report.

        Returns:
            The path of summary.json.
        """
        results = collect_results(metrics)
        gains = collect_gains(metrics)
        ks = self.evaluation["ks"]
        columns = (*(f"{metric}@{k}" for metric in ("recall", "ndcg") for k in ks), "catalog_hit_ratio", "n")
        summary = {
            "models": {name: {key: result[key] for key in columns} for name, result in results.items()},
            "gain": {key: value for key, value in gains["rank_grpo"].items() if key != "minus"},
            "gains": gains,
            "seconds": self.usage.seconds,
            "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
            "settings": {run.name: run.variables for run in (self.sft, self.rl)},
            "report": str(report),
        }
        write_json(self.out / "summary.json", summary)
        say("\n" + format_table([make_table_row(name, result, ks) for name, result in results.items()]))
        say(f"\npaired by row:\n{format_gains(gains, ks[-1])}")
        say(f"{sum(self.usage.seconds.values()) / 60:.1f} minutes\nreport: {report}\nsummary:")
        return self.out / "summary.json"


def collect_results(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Collect the results to compare; those of baselines are in the evaluation of Rank-GRPO.

    Args:
        metrics: as for `DemoRun.summarize`.

    Returns:
        Name -> summary, in the order of the table.
    """
    by_model = {name: evaluation["results"]["paper"] for name, evaluation in metrics.items()}
    rank_grpo = by_model["rank_grpo"]
    results = {name: rank_grpo[name] for name in ("popularity", "retrieval")}
    results |= {name: result["model"] for name, result in by_model.items()}
    return results | {"fused": rank_grpo["fused"]}


def collect_gains(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Collect the paired gain of each model over the one that it was trained from, and of fused lists over retrieval.

    Args:
        metrics: as for `DemoRun.summarize`.

    Returns:
        Name -> the gain: metric -> {"mean", "se", ...}, "n", and "minus", the name of the reference.
    """
    gains: dict[str, dict[str, Any]] = {}
    for name, evaluation in metrics.items():
        if "paired" in evaluation:
            pair = dict(evaluation["paired"])
            gains[name] = {"minus": Path(pair.pop("against")).name} | pair
    return gains | {"fused": {"minus": "retrieval"} | metrics["rank_grpo"]["fused"]["paired"]}


def format_gains(gains: Mapping[str, Mapping[str, Any]], k: int) -> str:
    """Format the table of `collect_gains`, a line per pair.

    Args:
        gains: at least one.
        k: cut-off of the metrics.
    """
    metrics = {f"Recall@{k}": f"recall@{k}", f"NDCG@{k}": f"ndcg@{k}"}
    table = [
        {"model": f"{name} minus {gain['minus']}"} | {title: format_gain(gain[key]) for title, key in metrics.items()}
        for name, gain in gains.items()
    ]
    return format_table(table, line_a_model=True)


def describe_serving(out: Path) -> str:
    """Return the commands that serve the demo's model, alone and, if the demo has one, with the retrieval."""
    # The name is that of the service's state: two demos with one name would share the changes to a catalog.
    name = out.resolve().name
    serve = f"convrec serve --model {name}={out / 'rank_grpo'} --catalog {out / 'data' / 'catalog.parquet'}"
    has_make_target = out == TINY.out and not INSTALLED
    alone = f"chat with the model in a browser: {'make serve' if has_make_target else serve}"
    models = read_json(out / "summary.json")["models"]
    if "fused" not in models:
        return alone
    longest = max(int(name.removeprefix("ndcg@")) for name in models["fused"] if name.startswith("ndcg@"))
    ndcg = {name: f"{model[f'ndcg@{longest}']['mean']:.3f}" for name, model in models.items()}
    figures = (
        f"NDCG@{longest} {ndcg['fused']} (the model alone {ndcg['rank_grpo']}, the retrieval alone {ndcg['retrieval']})"
    )
    return f"{alone}\nmodel and retrieval together: {figures}: {serve} --retrieval {out / 'retrieval'}"


def check_machine(demo: Demo, out: Path) -> None:
    """Check that disk and memory are large enough; files that the demo has already written count as free.

    Args:
        demo: the demo, with its needs.
        out: its folder, which need not exist.

    Raises:
        UserError: disk or memory is too small.
    """
    written = sum(file.stat().st_size for file in out.rglob("*") if file.is_file() and not file.is_symlink())
    existing = next(folder for folder in (out, *out.resolve().parents) if folder.exists())
    disk = (shutil.disk_usage(existing).free + written) / GIB
    if disk < demo.disk_gib:
        raise UserError(
            "demo.full-disk",
            f"{out}: the demo needs {demo.disk_gib:.0f} GiB of disk, {disk:.1f} GiB are free. Make room.",
        )
    memory = available_bytes() / GIB
    if memory < demo.memory_gib:
        raise UserError(
            "demo.too-little-memory",
            f"the demo needs {demo.memory_gib:.0f} GiB of memory, {memory:.1f} GiB are free. Close other programs.",
        )


def choose_demo(options: DemoOptions) -> tuple[Demo, Path]:
    """Return the demo that options choose, with their steps, and its folder."""
    demo = PRETRAINED if options.pretrained else TINY
    sft_steps = options.sft_steps or demo.sft_steps
    rl_steps = options.rl_steps or demo.rl_steps
    return replace(demo, sft_steps=sft_steps, rl_steps=rl_steps), options.out or demo.out


def clear_variables() -> None:
    """Remove the recipes' variables from this environment: the shell has set them for other runs."""
    for name in {variable.name for variable in VARIABLES} - {"LOGGER"} | {"RAY_ADDRESS"}:
        os.environ.pop(name, None)


@command(DemoOptions)
def main(options: DemoOptions) -> int:
    """Run a demo, or show the finished one; return the exit status."""
    demo, out = choose_demo(options)
    summary = out / "summary.json"
    if summary.exists():
        again = "make demo" if demo.out == TINY.out else "convrec demo --pretrained"
        say(f"{out} holds a finished demo. To run it again: rm -r {out} && {again}")
        print(summary, flush=True)
        say(describe_serving(out))
        return 0
    check_machine(demo, out)
    source = None
    if options.pretrained and not (out / "model").exists():
        source = choose_source(options.pretrained)
    clear_variables()
    try:
        out.mkdir(parents=True, exist_ok=True)
        print(DemoRun(demo, out.resolve()).run(source), flush=True)
        say(describe_serving(out))
    except UserError as error:
        say(error.as_line())
        return 1
    except KeyboardInterrupt:
        say("interrupted; the same command resumes")
        return 130
    return 0
