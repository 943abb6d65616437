"""The command: its page is what it prints, its errors, its JSON."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from convrec.settings import run as settings_run
from recipes import plan
from recipes.planning.estimate import GIB, checkpoint_bytes, make_workload
from recipes.planning.figures import GPUS, UPDATE_SECONDS
from recipes.planning.models import KNOWN_MODELS
from recipes.planning.plan import make_plan, shown
from recipes.planning.step_time import forward_seconds, network_seconds, update_seconds
from tests.recipes.planning.conftest import run as run_with

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "planning.md").read_text(encoding="utf-8")
PLANNING = (ROOT / "docs" / "explanation" / "planning.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n([^`]*convrec plan[^`]*)^```\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(set_variables: Callable, capsys: pytest.CaptureFixture[str]) -> Run:
    """run(arguments, VARIABLE=value) -> (exit status, stdout, stderr), in this process, with no other variable set."""

    def started(arguments: str, **variables: str) -> tuple[int, str, str]:
        set_variables(variables)
        status = plan.main(shlex.split(arguments))
        return status, *capsys.readouterr()

    return started


def test_the_page_has_commands_and_what_they_print() -> None:
    assert len(BLOCKS) == 2 == len(re.findall(r"^```bash\n[^`]*convrec plan", PAGE, re.MULTILINE))


@pytest.mark.parametrize(("command", "printed"), BLOCKS)
def test_the_page_shows_what_the_command_prints(command: str, printed: str, run: Run) -> None:
    """A whole output, or consecutive lines of it. Where this fails: paste what the command prints."""
    words = shlex.split(command)
    start = words.index("convrec")
    variables = dict(word.split("=") for word in words[:start])
    status, out, _ = run(shlex.join(words[start + 2 :]), **variables)
    assert status == 0
    assert printed.strip()
    assert f"\n{printed}" in f"\n{out}"


def measured_row(what: str) -> list[str]:
    """Cells of planning.md's comparison with measurements, after the first."""
    row = next(line for line in PLANNING.splitlines() if line.startswith(f"| {what}"))
    return [cell.strip() for cell in row.strip("|").split("|")[1:]]


@pytest.mark.parametrize(
    ("what", "model", "gpu", "gpus", "sequences", "tokens"),
    [
        ("Llama 3.1 8B, 8 H100", "8B", "H100", 8, 2, 5762),
        ("the same on 128 H100", "8B", "H100", 128, 2, 5605),
        ("Llama 3 8B, 64 A100", "8B", "A100", 64, 1, 2904),
        ("Llama 3 70B, 64 A100", "70B", "A100", 64, 1, 331),
    ],
)
def test_the_pages_comparison_with_published_training(
    what: str, model: str, gpu: str, gpus: int, sequences: int, tokens: int
) -> None:
    """Rows of 8,192 tokens, one micro-batch a GPU; from slow with all activations recomputed to fast with none."""

    def tokens_a_second(recomputes: bool, end: int) -> float:
        rows = {"prompt": 8192.0, "response": 0.0, "prompts": sequences * gpus, "mini_batch": sequences * gpus}
        shape = run_with(model, **rows, rollouts=1, nodes=gpus // 8, most_tokens=10**6, recomputes=recomputes, passes=0)
        seconds = update_seconds(shape, GPUS[gpu]) + network_seconds(shape, GPUS[gpu])
        return shape.tokens / seconds[end]

    slow, fast = tokens_a_second(True, 1), tokens_a_second("all" in what, 0)
    measured, said = measured_row(what)
    assert measured.startswith(f"{tokens:,},")
    assert said == shown([slow, fast])
    assert slow < tokens < fast


def test_the_pages_comparison_with_our_own_runs() -> None:
    """7.4 GiB of checkpoint; 110 s of update over 23 s of reference with recomputation, 1.6 over 0.6 s without."""
    assert measured_row("a checkpoint of 0.5B")[1] == f"{checkpoint_bytes(KNOWN_MODELS['0.5B'].size) / GIB:.2f} GiB"
    for recomputes, what, measured in (
        (True, "recomputed activations", 110 / 23),
        (False, "activations kept", 1.6 / 0.6),
    ):
        shape = run_with("0.5B", recomputes=recomputes)
        passes = (update_seconds(shape, GPUS["H100"])[0] - 0.2) / forward_seconds(shape, GPUS["H100"])[0]
        said = measured_row(f"update over reference, {what}")
        assert said[0].startswith(f"{measured:.1f}, ")
        assert said[1] == f"{passes:.0f}"


def plan_of_half_b(config: DictConfig, rows: int, val_rows: int) -> dict[str, Any]:
    run = settings_run.Run.from_config(config)
    return make_plan(run, make_workload(run, KNOWN_MODELS["0.5B"].size), GPUS["H100"], rows, val_rows)


def test_the_pages_comparison_with_verl(config_with: Callable[..., DictConfig]) -> None:
    """6 prompts x 8 rollouts on two GPUs; 5.1 s were measured."""
    config = config_with(keys={"trainer.n_gpus_per_node": 2, "data.train_batch_size": 6})
    fast, slow = plan_of_half_b(config, 383_000, 1000)["seconds of a step"]["a step"]
    assert measured_row("a step of verl")[1] == f"{shown([fast, slow])} s"
    assert fast < 5.1 < slow


def test_the_papers_run_takes_what_the_pages_say(config_with: Callable[..., DictConfig]) -> None:
    """Qwen2.5-0.5B on four GPUs, the defaults: 5 to 8 s are expected, a quarter of them arithmetic."""
    found = plan_of_half_b(config_with(keys={"trainer.n_gpus_per_node": 4}), 383_013, 9_421)
    assert found["work"]["steps"] == 2 * (383_013 // 48) == 15_958
    seconds = found["seconds of a step"]
    fast, slow = seconds["a step"]
    assert fast < 5
    assert slow > 8
    for end, besides in enumerate(UPDATE_SECONDS.range):
        assert 0.2 < (seconds["log-probs"][end] + seconds["update"][end] - besides) / seconds["a step"][end] < 0.25
    for page in ("README.md", "docs/explanation/performance.md"):
        assert f"{shown([fast, slow])} s per step" in " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert f"The plan says {shown([fast, slow])} s" in " ".join(PLANNING.split())


def test_json_has_what_the_text_has(run: Run) -> None:
    arguments, variables = "--model 3B --rows 4000 --val-rows 100", {"N_NODES": "2", "TRAIN_BATCH_SIZE": "64"}
    status, out, _ = run(f"{arguments} --json", **variables)
    found = json.loads(out)
    assert status == 0
    assert (found["lacks"], found["parameters"]) == ([], 3_212_749_824)
    assert found["work"]["steps"] == 2 * (4000 // 64)
    _, text, _ = run(arguments, **variables)
    figures = [entry for section in found.values() if isinstance(section, dict) for entry in section.items()]
    assert all(re.search(rf"^  {re.escape(name)} +{re.escape(shown(figure))}$", text, re.M) for name, figure in figures)
    assert all(f"  {constant['name']}: " in text for constant in found["constants"])


def test_rows_are_those_of_the_files(sample: Path, model: Path, run: Run) -> None:
    """40 rows, 10 batches of 4 in each of 3 epochs; a folder's config.json gives the size."""
    files = {"TRAIN_FILE": str(sample / "train.parquet"), "VAL_FILE": str(sample / "validation.parquet")}
    variables = {"MODEL_PATH": str(model), "TRAIN_BATCH_SIZE": "4", "TOTAL_EPOCHS": "3", "N_GPUS_PER_NODE": "4"}
    status, out, error = run("", **files, **variables)
    assert (status, error) == (0, "")
    assert re.search(r"steps +30\n", out)
    assert "1 x 4 H100" in out


def test_what_the_command_line_says_counts(run: Run) -> None:
    """25 Gbit/s of a node of 8 GPUs: 8 GPUs' adapters share 3.1 GB/s; two nodes, so that they are the narrowest."""

    def planned(arguments: str = "") -> dict[str, Any]:
        status, out, _ = run(f"--rows 4000 --val-rows 5 --json {arguments}", N_NODES="2")
        assert status == 0
        return json.loads(out)

    plain, slow = planned(), planned("--network-gbit 25")
    network = [found["seconds of a step"]["network"][1] for found in (plain, slow)]
    assert network[1] == pytest.approx(network[0] * 400e9 / 3.125e9)
    given = planned("--prompt-tokens 300 --response-tokens 700")["work"]
    assert (given["tokens of a prompt"], given["tokens of a response"]) == (300, 700)
    assert planned("--gpu A100")["seconds of a step"]["update"][0] > plain["seconds of a step"]["update"][0]


def test_validation_without_rows_is_reported(run: Run) -> None:
    status, out, error = run("--rows 4000")
    assert status == 0
    assert "VAL_FILE" in error
    assert "--val-rows" in error
    assert re.search(r"validation +0 to 0\n", out)


def test_a_training_file_that_cannot_be_read_is_named(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "train.parquet"
    message = run("", TRAIN_FILE=str(file))[2]
    assert f"TRAIN_FILE={file}: " in message
    assert message.endswith("[plan.missing-train-file]\n")
    file.write_text("no table")
    status, _, error = run("", TRAIN_FILE=str(file))
    assert (status, f"{file}: " in error) == (2, True)
    assert run("trainer.total_training_steps=10", TRAIN_FILE=str(file))[0] == 0  # nor is it needed


@pytest.mark.parametrize(
    ("arguments", "variables", "problem"),
    [
        ("--rows 40 --model 9B", {}, "[plan.unusable-model]"),
        ("--rows 4000", {"N_NODES": "128"}, "1024 devices"),
        ("--recipe sft --rows 400", {"TRAIN_BATCH_SIZE": "100"}, "TRAIN_BATCH_SIZE=100"),
        ("--rows 4000", {"LR": "fast"}, "LR=fast: "),
        ("--rows 0", {}, "--rows 0: "),
        ("--network-gbit -1", {}, "--network-gbit -1: "),
        (
            "--rows 4000 --model 0.5B",
            {"TENSOR_PARALLEL": "4"},
            "TENSOR_PARALLEL=4",
        ),
        (
            "--rows 4000 --model 8B",
            {"TENSOR_PARALLEL": "16", "N_NODES": "2"},
            "[plan.replica-across-nodes]",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments: str, variables: dict[str, str], problem: str, run: Run) -> None:
    status, out, error = run(arguments, **variables)
    assert (status, out) == (2, "")
    assert problem in error


@pytest.mark.parametrize("arguments", ["--rows many", "--gpu B300", "--recipe judge"])
def test_a_wrong_option_is_one_line(arguments: str, run: Run) -> None:
    status, printed, error = run(arguments)
    assert (status, printed, len(error.splitlines())) == (2, "", 1)
    assert error.startswith(f"error: {arguments}: ")


def test_a_plan_imports_nothing_heavy() -> None:
    code = (
        "import sys; from recipes import plan;"
        "status = plan.main(['--rows', '4000', '--model', '8B']);"
        "print(status, [name for name in ('torch', 'verl', 'ray', 'transformers') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
