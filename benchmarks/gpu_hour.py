"""The first hour on a GPU: parts ordered by their value, and one page with their results.

    python benchmarks/gpu_hour.py --demo outputs/demo                 (make gpu-hour)
    python benchmarks/gpu_hour.py --demo outputs/demo --minutes 9     (make gpu-hour MINUTES=9)
    python benchmarks/gpu_hour.py --demo outputs/demo --parts free half_b

DEMO is the folder of `convrec demo`: data/, model/ and sft/ are read. With --minutes, no part starts whose limit
exceeds that time; the same command continues with the others. With --parts, only these run. Each part has its own time
limit, and its failure does not stop the others. A finished part is not repeated; a failed one is retried after the
others. OUT has the runs, and in results/ the small files: PART.json and PART.log of each part, figures of benchmarks,
report.html. Without a GPU the same parts run at the smallest size, as a rehearsal. Exit status 1 if a part failed.
"""

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from convrec.base.errors import UserError
from convrec.base.files import read_json, write_json, write_text
from convrec.base.gpus import usable_gpus
from convrec.base.kinds import did_you_mean
from convrec.base.same_request import json_roundtrip
from convrec.report.html import Cell, Grid
from convrec.runs.folder import LATEST, latest_step
from convrec.runs.supervisor import die_with_parent
from recipes.demos.sizes import TINY, read_runs
from recipes.gpu_check import format_outcome
from recipes.launch.variables import VARIABLES
from recipes.planning.figures import GPUS
from recipes.report import report
from recipes.selftest.runner import Outcome
from recipes.selftest.step import compute_figures

ROOT = Path(__file__).resolve().parents[1]
END_SECONDS = 20  # of a part's limit, reserved for its processes to end by themselves
# Limits for an H200, where ten steps of a tiny model took 180 s including the start (notes/gpu.md).
TRAINING_SECONDS = 300
EVALUATION_SECONDS = 300
HALF_B_SECONDS = 330
CHECK_SECONDS = 300
LOG_LINES = 30  # of a failed part
# Each worker is a process with its own imports: with eight of both, a start would take minutes.
FEW = "data.val_max_samples=64 actor_rollout_ref.rollout.agent.num_workers=2 reward.num_workers=2"
LLAMA = "--model-type llama --hidden-size 256 --num-heads 4 --num-kv-heads 2 --intermediate-size 512"
PAPER = {"TRAIN_BATCH_SIZE": "48", "ROLLOUT_N": "8", "MAX_RESPONSE_LENGTH": "256", "TOTAL_STEPS": "5"}
BENCHMARKS = {  # name -> (on a GPU, without one, seconds); vLLM takes 100 s to start on a GPU
    "loss": ("--device cuda --dtype bfloat16 --compile", "--repeats 2", 300),
    "constrained_update": (
        "--device cuda --dtype bfloat16 --hidden 896 --layers 24 --lists 48",
        "--items 300 --lists 2 --hidden 64 --layers 1 --repeats 1",
        300,
    ),
    "constrained_decoding": ("--repeats 3", "--items 300 --lists 4 --hidden 64 --layers 1 --tokens 4 --repeats 1", 480),
    "serving": ("--levels 1,16,64 --seconds 30", "--levels 1,4 --seconds 6", 480),  # 180 s of load
}
EVALUATIONS = {"before": "sft", "after": "free", "after, under the constraint": "constrained"}
PLANNED = {  # verl's name of a phase of a step -> the plan's
    "timing_s/gen": "rollout",
    "timing_s/ref": "log-probs",
    "timing_s/update_actor": "update",
    "timing_s/update_weights": "weight sync",
    "timing_s/step": "a step",
}


@dataclass(frozen=True)
class Command:
    """A command of a part.

    Attributes:
        name: for results and messages.
        words: of `convrec`, or a Python file of the checkout with its arguments, as in a shell.
        variables: of its environment.
        file: JSON file of its figures.
        prints: whether the file is the command's output.
    """

    name: str
    words: str
    variables: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    prints: bool = False


@dataclass(frozen=True)
class Part:
    """A part of the hour.

    Attributes:
        name: for `--parts`.
        what: description.
        seconds: time limit of all its commands together.
        commands: run one after the other.
        needs: parts that must be done first.
    """

    name: str
    what: str
    seconds: int
    commands: tuple[Command, ...]
    needs: tuple[str, ...] = ()


Results = dict[str, dict[str, Any]]  # part -> its result, as in PART.json; empty if it has not run


# ---- the parts


def make_parts(out: Path, demo: Path, gpus: int, gpu_name: str = "") -> list[Part]:
    """Make all parts, in the order of their value.

    Args:
        out: the folder to write.
        demo: folder of a finished tiny demo (`check_demo`).
        gpus: number of GPUs; 0 rehearses the hour without one, scaled down.
        gpu_name: torch's name of the GPU, for the plan; "" plans for an H100.
    """
    folder, data, sft = shlex.quote(str(out)), shlex.quote(str(demo / "data")), demo / "sft"
    _, rl, _ = read_runs(TINY, demo)
    common = {name: text for name, text in rl.variables.items() if name != "TOTAL_STEPS"}
    common |= {"SAVE_FREQ": "4", "SAVE_KEEP": "all", "TEST_FREQ": "8", "LOGGER": "console,file"}

    def train(name: str, steps: int, model: Path, run: str, **variables: str) -> Command:
        places = {"MODEL_PATH": str(model), "SAVE_PATH": str(out / run), "TOTAL_STEPS": str(steps)}
        return Command(name, f"train rank-grpo {FEW}", common | places | variables)

    def evaluate(name: str, model: str, others: str) -> Command:
        split = f"--data {data}/test.parquet --catalog {data}/catalog.parquet --train {data}/train.parquet --limit 300"
        split += f" --max-prompt-length 256 --max-response-length 100 --out {folder}/evaluation/{name}"
        file = out / "evaluation" / name / "metrics.json"
        return Command(f"evaluation of {name}", f"evaluate --model {model} {split} {others}", file=str(file))

    def make_printing_command(name: str, words: str, **variables: str) -> Command:
        return Command(name, words, variables, str(out / "results" / f"{name}.figures.json"), prints=True)

    def benchmark(name: str, what: str, others: str = "", *needs: str) -> Part:
        on_gpu, without, seconds = BENCHMARKS[name]
        words = f"benchmarks/bench_{name}.py {on_gpu if gpus else without} {others}"
        return Part(name, what, seconds, (make_printing_command(name, words),), needs)

    def make_check(name: str, phases: str) -> Command:
        file = str(out / "results" / f"{name}.figures.json")
        return Command(name, f"gpu-check --json {shlex.quote(file)} --only {phases}", file=file)

    def check(name: str, what: str, phases: str) -> Part:
        return Part(name, f"gpu-check: {what}", CHECK_SECONDS, (make_check(name, phases),))

    against = f"--against {folder}/evaluation/sft"
    before = evaluate("sft", shlex.quote(str(sft)), "--constrained")
    after = evaluate("free", f"{folder}/free/global_step_8", against)
    after_constrained = evaluate("constrained", f"{folder}/constrained/global_step_8", f"--constrained {against}")
    free, resume = train("free", 8, sft, "free"), train("resume", 10, sft, "free")
    constrained = train("constrained", 8, sft, "constrained", CONSTRAINED="1")
    of_llama = train("llama", 2, out / "llama-model", "llama")
    kind = next((kind for kind in GPUS if kind in gpu_name), "H100")
    devices = {"N_GPUS_PER_NODE": "2" if gpus > 1 else "1"}  # as phase `step` takes
    words = f"plan --json --model 0.5B --gpu {kind} --rows 400 --response-tokens {PAPER['MAX_RESPONSE_LENGTH']}"
    plan = make_printing_command("plan", words, **(common | PAPER | devices))
    llama = Command("model", f"tiny-model --data {data} --out {folder}/llama-model {LLAMA}")
    of_model = "{0}_rollout {0}_weights {0}_sleep {0}_constrained"
    words_of = "" if gpus else f"--tokenizer {shlex.quote(str(demo / 'model'))}"  # 150,000 words take a minute
    lists = f"--kinds list free_list --no-faults --malformed 0 --model {folder}/free --catalog {data}/catalog.parquet"
    half_b_what = "Qwen2.5-0.5B's shape, the paper's batch, 5 steps"
    return [
        Part("free", "Rank-GRPO from the SFT model, 8 steps", TRAINING_SECONDS, (free,)),
        Part("half_b", half_b_what, HALF_B_SECONDS, (plan, make_check("step", "step"))),
        Part("evaluation", "before and after `free`", EVALUATION_SECONDS, (before, after), ("free",)),
        Part("constrained", "Rank-GRPO under the constraint, 8 steps", TRAINING_SECONDS, (constrained,)),
        Part(
            "evaluation_constrained",
            "after `constrained`",
            EVALUATION_SECONDS,
            (after_constrained,),
            ("evaluation", "constrained"),
        ),
        Part("llama_model", "a model of Llama's shape, with untied embeddings", 120, (llama,)),
        Part("llama", "Rank-GRPO with it, 2 steps", TRAINING_SECONDS, (of_llama,), ("llama_model",)),
        Part("resume", "the first run resumes, up to step 10", TRAINING_SECONDS, (resume,), ("free",)),
        benchmark("loss", "the rank-level loss against verl's"),
        benchmark("constrained_update", "a constrained update against a free one", words_of),
        benchmark("constrained_decoding", "vLLM's constrained decoding against free", words_of),
        benchmark("serving", "lists over HTTP", lists, "free"),
        check("check_llama", "a rollout of Llama's shape", of_model.format("llama")),
        check("check_qwen3", "a rollout of Qwen3's shape", of_model.format("qwen3")),
        check("check_training", "training", "versions fsdp2 packed fused resume lora two_ranks kernels"),
        check("check_rollout", "rollouts", "rollout weights sleep lora_rollout tensor_parallel constrained"),
    ]


# ---- running them


def run_parts(parts: Sequence[Part], out: Path, gpus: int, minutes: float, names: Sequence[str] = ()) -> Results:
    """Run the parts that are not done and fit into the time.

    Args:
        parts: all of them; the page lists each.
        out: folder for runs and results.
        gpus: number of GPUs.
        minutes: a part whose limit exceeds the rest of this time does not start.
        names: parts that may run; (): all.

    Returns:
        The result of each part, from now or before.

    Raises:
        UserError: A name is not a part's, or a part needs one that is neither done nor chosen.
    """
    deadline = time.monotonic() + 60 * minutes
    results = out / "results"
    results.mkdir(parents=True, exist_ok=True)
    requests = {part.name: json_roundtrip({"gpus": gpus, **asdict(part)}) for part in parts}
    kept = {name: _read_result(results / f"{name}.json", request) for name, request in requests.items()}
    chosen = _choose_parts(parts, names, kept)
    for part in sorted(chosen, key=lambda part: bool(kept[part.name])):  # failed parts come last
        if is_done(part.name, kept):
            print(f"{part.name:24} done before", flush=True)
        elif all(is_done(name, kept) for name in part.needs) and time.monotonic() + part.seconds <= deadline:
            print(f"{part.name:24} {part.what}, at most {part.seconds} s", flush=True)
            result = run_part(part, results / f"{part.name}.log")
            print(f"{'':24} {result['status']}, {result['seconds']:.0f} s {result['why']}", flush=True)
            kept[part.name] = {"request": requests[part.name]} | result
            write_json(results / f"{part.name}.json", kept[part.name])
            try:
                write_page(out, parts, kept, gpus)
            except UserError as error:  # must not stop the other parts
                print(f"{'':24} no page: {error}", file=sys.stderr)
    return kept


def _choose_parts(parts: Sequence[Part], names: Sequence[str], kept: Results) -> list[Part]:
    """Choose the parts with these names, in the order of all parts."""
    known = {part.name for part in parts}
    for name in names:
        if name not in known:
            raise UserError(
                "gpu-hour.unknown-part", f"--parts {name}: no such part; {did_you_mean(name, sorted(known))}"
            )
    chosen = [part for part in parts if part.name in names or not names]
    for part in chosen:
        missing = [need for need in part.needs if names and need not in names and not is_done(need, kept)]
        if missing:
            raise UserError(
                "gpu-hour.missing-part",
                f"--parts {part.name}: needs {', '.join(missing)}, which is not done. Add it to --parts.",
            )
    return chosen


def is_done(name: str, kept: Results) -> bool:
    """Return whether a part has passed.

    Args:
        name: of the part.
        kept: as for `write_page`.
    """
    return kept[name].get("status") == "pass"


def _read_result(file: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Read an earlier result of the same part; {} if there is none."""
    result: dict[str, Any] = read_json(file) if file.exists() else {}
    return result if result.get("request") == request else {}


def run_part(part: Part, log: Path) -> dict[str, Any]:
    """Run a part up to its first failing command.

    Args:
        part: the part. Its commands share its time limit.
        log: the file that gets their output.

    Returns:
        `status` ("pass" or "fail"), `why` ("" if it passed), `seconds`, `figures` by command, and `log`: the last lines
        of a part that failed.
    """
    start, figures, why = time.monotonic(), dict[str, Any](), ""
    with log.open("w") as output:
        for command in part.commands:
            why = run_command(command, output, start + part.seconds - END_SECONDS)
            try:
                if command.file and Path(command.file).exists():
                    figures[command.name] = read_json(Path(command.file))
                if run := command.variables.get("SAVE_PATH"):
                    figures[command.name] = compute_figures(Path(run))
            except UserError as error:  # must not stop the other parts
                why = why or f"{command.name}: {error}"
            if why:
                break
    tail = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if why else []
    seconds = round(time.monotonic() - start, 1)
    return {"status": "fail" if why else "pass", "why": why, "seconds": seconds, "figures": figures, "log": tail}


def run_command(command: Command, log: IO[str], deadline: float) -> str:
    """Run a command and end everything that it started.

    Args:
        command: the command.
        log: gets its output, except for what a command prints as its result.
        deadline: by time.monotonic().

    Returns:
        What went wrong; "" if it succeeded.
    """
    first, *others = shlex.split(command.words)
    program = [str(ROOT / first)] if first.endswith(".py") else ["-m", "recipes", first]
    if command.file:
        Path(command.file).unlink(missing_ok=True)
    with subprocess.Popen(
        [sys.executable, *program, *others],
        env={**os.environ, "PYTHONUNBUFFERED": "1", **command.variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if command.prints else log,
        stderr=log,
        text=True,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    ) as process:
        try:
            printed, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return f"{command.name}: no end within the part's limit"
        finally:
            _end_process(process)
    if process.returncode:
        return f"{command.name}: exit status {process.returncode}"
    if command.prints:
        write_text(Path(command.file), printed)
    return ""


def _end_process(process: subprocess.Popen) -> None:
    """End a process, first with SIGTERM, so that a training or a server can end its own processes."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


# ---- the page


def write_page(out: Path, parts: Sequence[Part], kept: Results, gpus: int) -> Path:
    """Write OUT/results/report.html.

    Args:
        out: folder of the hour.
        parts: in the order of the page.
        kept: name of a part -> result of `run_part`; {} for one that has not run.
        gpus: number of GPUs; 0 for a rehearsal.

    Returns:
        The page's path.

    Raises:
        UserError: a run or an evaluation cannot be read.
    """
    runs = [out / name for name in ("free", "constrained") if latest_step(out / name)]
    folders = {name: out / "evaluation" / of for name, of in EVALUATIONS.items()}
    evaluations = {name: folder for name, folder in folders.items() if (folder / "metrics.json").exists()}
    tables = {
        "Parts": _make_parts_table(parts, kept),
        "A step: medians of the steps after the first": _make_steps_table(kept),
    }
    for part in parts:
        found = kept[part.name].get("figures", {}).get(part.name)  # of a benchmark, or phases of gpu-check
        if found and "timing_s/step" not in found:
            tables[part.what] = Grid(["found"], [(name, [Cell(text)]) for name, text in _iter_figures(found)])
    title = f"An hour on {gpus} GPU{'s' * (gpus > 1)}" if gpus else "An hour on a GPU, rehearsed without one"
    scaled = "Everything is scaled down, also Qwen2.5-0.5B's shape and the paper's batch; the plan is for full size."
    shown = {heading: table for heading, table in tables.items() if table.rows}
    more: dict[str, Any] = {"title": title, "notes": [] if gpus else [scaled], "tables": shown}
    return report(runs, out / "results" / "report.html", evaluations, more=more)


def _make_parts_table(parts: Sequence[Part], kept: Results) -> Grid:
    rows = []
    for part in parts:
        one = kept[part.name] or {"status": "not begun", "seconds": "", "why": ""}
        texts = [part.what, one["status"], _format_value(one["seconds"]), str(part.seconds), one["why"]]
        rows.append((part.name, [Cell(text) for text in texts]))
    return Grid(["what", "status", "seconds", "limit", "why"], rows)


def _make_steps_table(kept: Results) -> Grid:
    """Make a column for each training, and one for the plan of `half_b`."""
    columns: dict[str, Mapping[str, Any]] = {}
    for part, one in kept.items():
        for name, found in one.get("figures", {}).items():
            if "timing_s/step" in found:
                columns[name] = found
            elif name == "step":
                columns[part] = found["phases"][0]["figures"]
            elif name == "plan":
                columns["plan"] = {phase: found["seconds of a step"][of] for phase, of in PLANNED.items()}
    rows = dict.fromkeys(name for found in columns.values() for name in found)
    return Grid(
        [*columns], [(name, [Cell(_format_value(found.get(name))) for found in columns.values()]) for name in rows]
    )


def _iter_figures(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for the figures of a benchmark or of gpu-check."""
    if "phases" in found:
        for phase in found["phases"]:
            yield (
                phase["phase"],
                format_outcome(Outcome(**{name: value for name, value in phase.items() if name != "what"})),
            )
        return
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}, {inner}", text) for inner, text in _iter_figures(value))
        else:
            yield name, _format_value(value)


def _format_value(value: Any) -> str:
    """Format a figure, a range, or several; four digits, because differences of log-probs are far below 1."""
    if isinstance(value, list):
        return (" to " if len(value) == 2 else ", ").join(map(_format_value, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def check_demo(demo: Path) -> None:
    """Check that the demo has the files that the parts read.

    Raises:
        UserError: a file is missing.
    """
    needed_files = ("data/train.parquet", "data/test.parquet", "model/config.json", f"sft/{LATEST}")
    for needed in map(demo.joinpath, needed_files):
        if not needed.exists():
            raise UserError(
                "gpu-hour.incomplete-demo",
                f"--demo {demo}: no {needed.relative_to(demo)}. Run `convrec demo --out {demo}`.",
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--demo", type=Path, default=Path("outputs/demo"), help="folder of a demo (%(default)s)")
    parser.add_argument(
        "--out", type=Path, help="folder to write (outputs/gpu-hour; without a GPU outputs/gpu-hour-rehearsed)"
    )
    parser.add_argument("--minutes", type=float, default=120, help="limit for all parts together (%(default)s)")
    parser.add_argument("--parts", nargs="+", metavar="NAME", default=[], help="parts to run (default: all)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exits normally, which also ends a part's processes
    demo = options.demo.resolve()
    for name in {variable.name for variable in VARIABLES} | {"RAY_ADDRESS"}:
        os.environ.pop(name, None)  # the shell has set them for other runs
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        check_demo(demo)
        gpus, gpu_name = usable_gpus(), ""
        if gpus:
            import torch

            gpu_name = torch.cuda.get_device_name(0)
        # a separate folder, or a training on a GPU would resume from the rehearsal's checkpoint
        out = (options.out or Path("outputs", "gpu-hour" if gpus else "gpu-hour-rehearsed")).resolve()
        parts = make_parts(out, demo, gpus, gpu_name)
        kept = run_parts(parts, out, gpus, options.minutes, options.parts)
    except UserError as error:
        print(error.as_line(), file=sys.stderr)
        return 2
    chosen = [part for part in parts if part.name in options.parts or not options.parts]
    failed = [part.name for part in chosen if kept[part.name].get("status") == "fail"]
    left = [part for part in chosen if not kept[part.name]]
    print(f"{len(failed)} of {len(chosen)} parts failed, {len(left)} are left; {out / 'results' / 'report.html'}")
    if left and (least := min(part.seconds for part in left)) > 60 * options.minutes:
        print(f"each remaining part may take longer than --minutes {options.minutes:g}: {least} s and more")
    elif failed or left:
        print(f"to continue: python {shlex.join(sys.argv)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
