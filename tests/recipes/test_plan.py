"""The command: its page is what it prints, its errors, its JSON."""

import argparse
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

from convrec.errors import UserError
from recipes import plan
from recipes.launch.recipe import RANK_GRPO
from recipes.planning import step_time
from recipes.planning.constants import GPUS, UPDATE_SECONDS
from recipes.planning.estimate import checkpoint_bytes
from recipes.planning.figures import shown
from recipes.planning.models import known_size
from recipes.planning.network import Cluster
from recipes.planning.plan import Plan, make_plan
from recipes.planning.run import Data
from recipes.planning.step_time import Batch, Training

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "planning.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(set_variables: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """run(arguments, VARIABLE=value) -> (exit status, stdout, stderr), in this process, with no other variable set."""

    def started(arguments: str, **variables: str) -> tuple[int, str, str]:
        set_variables(variables)
        monkeypatch.setattr(sys, "argv", ["recipes.plan", *shlex.split(arguments)])
        status = plan.main()
        return status, *capsys.readouterr()

    return started


def test_the_page_has_commands_and_what_they_print() -> None:
    assert len(BLOCKS) == 4 == PAGE.count("```bash")


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
    """Cells of the page's table of comparisons, after the first."""
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {what}"))
    return [cell.strip() for cell in row.strip("|").split("|")[1:]]


@pytest.mark.parametrize(
    ("what", "model", "gpu", "gpus", "sequences", "recomputed", "tokens"),
    [
        ("Llama 3.1 8B, 8 H100", "8B", "H100", 8, 2, (True, False), 5762),
        ("the same on 128 H100", "8B", "H100", 128, 2, (True, False), 5605),
        ("Llama 3 8B, 64 A100", "8B", "A100", 64, 1, (True, False), 2904),
        ("Llama 3 70B, 64 A100", "70B", "A100", 64, 1, (True,), 331),
    ],
)
def test_the_pages_comparison_with_published_training(
    what: str, model: str, gpu: str, gpus: int, sequences: int, recomputed: tuple[bool, ...], tokens: int
) -> None:
    """Rows of 8,192 tokens, one micro-batch a GPU; with all activations recomputed, and with none."""
    size, kind = known_size(model), GPUS[gpu]
    assert size is not None
    cluster = Cluster(gpus // 8, 8, kind, kind.network)
    batch = Batch(sequences * gpus, 1, 8192, 0)
    predicted = []
    for recomputes in recomputed:
        training = Training(gpus, 10**6, 1, 1, recomputes, lora=False)
        predicted.append(batch.tokens / gpus / step_time.update_seconds(cluster, size, batch, training))
    measured, said, ratio = measured_row(what)
    assert measured.startswith(f"{tokens:,},")
    assert said == " to ".join(f"{value:,.0f}" for value in predicted)
    assert ratio == " to ".join(f"{value / tokens:.2f}" for value in predicted)


def test_the_pages_comparison_with_our_own_runs() -> None:
    """7.4 GiB of checkpoint; 110 s of update over 23 s of reference with recomputation, 1.6 over 0.6 s without."""
    size = known_size("0.5B")
    assert size is not None
    checkpoint = checkpoint_bytes(size)
    assert measured_row("a checkpoint of 0.5B")[1:] == [shown(checkpoint, "bytes"), f"{checkpoint / 2**30 / 7.4:.2f}"]
    cluster = Cluster(1, 8, GPUS["H100"], GPUS["H100"].network)
    batch = Batch(384, 1, 400, 200)
    rows = {True: ("recomputed activations", 110 / 23), False: ("activations kept", 1.6 / 0.6)}
    for recomputes, (what, measured) in rows.items():
        training = Training(8, 10**6, 1, 1, recomputes, lora=False)
        passes = step_time.update_compute_seconds(cluster, size, batch, training)
        ratio = passes / step_time.log_prob_seconds(cluster, size, batch, training)
        said = measured_row(f"update over reference, {what}")
        assert said[0].startswith(f"{measured:.1f}, ")
        assert said[1:] == [f"{ratio:.0f}", f"{ratio / measured:.2f}"]


def plan_of_half_b(config: DictConfig, rows: int, val_rows: int = 1000) -> Plan:
    size, gpu = known_size("0.5B"), GPUS["H100"]
    assert size is not None
    cluster = Cluster(1, config.trainer.n_gpus_per_node, gpu, gpu.network)
    return make_plan(config, size, cluster, Data(rows, val_rows), RANK_GRPO.requirements)


def arithmetic_of(found: Plan) -> float:
    """Seconds of a step; old log-probs there are none."""
    seconds = {phase.name: phase.value for phase in found.phases}
    return seconds["prefill"] + seconds["reference"] + seconds["update"] - UPDATE_SECONDS.value


def test_the_pages_comparison_with_verl(config_with: Callable[..., DictConfig]) -> None:
    """6 prompts x 8 rollouts on two GPUs."""
    found = plan_of_half_b(config_with(keys={"trainer.n_gpus_per_node": 2, "data.train_batch_size": 6}), 383_000)
    seconds = found.step.value
    assert measured_row("a step of verl")[1:] == [f"{seconds:.2f} s", f"{seconds / 5.1:.2f}"]
    assert f"{arithmetic_of(found):.1f} s of its 5.1 s are arithmetic" in PAGE


def test_the_papers_run_takes_what_the_readme_says(config_with: Callable[..., DictConfig]) -> None:
    """Qwen2.5-0.5B on four GPUs, the defaults."""
    found = plan_of_half_b(config_with(keys={"trainer.n_gpus_per_node": 4}), 383_013, 9_421)
    assert found.work[0].value == 2 * (383_013 // 48) == 15_958
    for page in ("README.md", "docs/explanation/performance.md"):
        assert f"{found.step.value:.1f} s a step" in " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert 0.25 < arithmetic_of(found) / found.step.value < 1 / 3


def test_json_has_every_figure_with_its_constants(run: Run) -> None:
    status, out, _ = run("--model 3B --rows 4000 --val-rows 100 --json", N_NODES="2", TRAIN_BATCH_SIZE="64")
    found = json.loads(out)
    assert status == 0
    assert found["fits"] is True
    named = {
        name for section in ("work", "phases", "storage") for entry in found[section] for name in entry["constants"]
    }
    assert named <= {constant["name"] for constant in found["constants"]}
    assert found["parameters"] == 3_212_749_824
    assert next(entry["value"] for entry in found["work"] if entry["name"] == "steps") == 2 * (4000 // 64)


def test_rows_are_those_of_the_files(sample: Path, model: Path, run: Run) -> None:
    """40 rows, 10 batches of 4 in each of 3 epochs; a folder's config.json gives the size."""
    files = {"TRAIN_FILE": str(sample / "train.parquet"), "VAL_FILE": str(sample / "validation.parquet")}
    variables = {"MODEL_PATH": str(model), "TRAIN_BATCH_SIZE": "4", "TOTAL_EPOCHS": "3", "N_GPUS_PER_NODE": "4"}
    status, out, error = run("", **files, **variables)
    assert (status, error) == (0, "")
    assert re.search(r"steps +30 ", out)
    assert "1 x 4 H100" in out


def options(**given: Any) -> argparse.Namespace:
    nothing = dict.fromkeys(("rows", "val_rows", "prompt_tokens", "response_tokens", "network_gbit"))
    return argparse.Namespace(**{**nothing, "gpu": "H100", **given})


def test_what_the_command_line_says_is_given(config_with: Callable[..., DictConfig]) -> None:
    """25 Gbit/s of a node of 8 GPUs."""
    network = plan.cluster_of(config_with(), options(network_gbit=25.0)).network
    assert (network.value, network.kind, network.source) == (25e9 / 8 / 8, "given", "--network-gbit")
    data = plan.data_of(config_with(), options(rows=10, val_rows=5, response_tokens=7.0))
    assert (data.rows, data.validation_rows, data.prompt) == (10, 5, None)
    assert data.response is not None
    assert (data.response.value, data.response.kind) == (7.0, "given")


def test_a_training_file_that_cannot_be_read_is_named(tmp_path: Path, config_with: Callable[..., DictConfig]) -> None:
    file = tmp_path / "train.parquet"
    config = config_with(keys={"data.train_files": str(file)})
    with pytest.raises(UserError, match=f"TRAIN_FILE={file}: no such file; name one, or say --rows"):
        plan.data_of(config, options())
    file.write_text("no table")
    with pytest.raises(UserError, match=f"{file}: not a parquet file, or cut off"):
        plan.data_of(config, options())
    config.trainer.total_training_steps = 10
    assert plan.data_of(config, options(val_rows=5)).rows == 0  # nor is it needed


@pytest.mark.parametrize(
    ("gpus", "model", "said"),
    [
        (4, "0.5B", "TENSOR_PARALLEL=4 does not divide the 14 attention heads of 0.5B"),
        (16, "8B", "TENSOR_PARALLEL=16: a replica over several nodes is not modelled; at most N_GPUS_PER_NODE=8"),
    ],
)
def test_a_replica_that_cannot_be_is_refused(
    gpus: int, model: str, said: str, config_with: Callable[..., DictConfig]
) -> None:
    config = config_with(keys={"actor_rollout_ref.rollout.tensor_model_parallel_size": gpus})
    with pytest.raises(UserError, match=said):
        plan.named_size(config, RANK_GRPO, model)


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (
            "--rows 40 --model 9B",
            {},
            "9B: not in the Hub's cache here; give a folder with a config.json, or one of 0.5B",
        ),
        ("--rows 4000 --table", {}, "384 responses do not divide over 1024 devices"),
        (
            "--recipe sft --rows 4000",
            {"TRAIN_BATCH_SIZE": "100"},
            "TRAIN_BATCH_SIZE=100 does not divide over 8 devices",
        ),
        ("--rows 4000", {"LR": "fast"}, "LR=fast: expected a number of at least 0"),
        ("--rows 4000 --table --model 8B", {}, "--model 8B: --table has every size"),
    ],
)
def test_what_cannot_be_planned_says_why(arguments: str, variables: dict[str, str], said: str, run: Run) -> None:
    status, out, error = run(arguments, **variables)
    assert (status, out) == (2, "")
    assert said in error


@pytest.mark.parametrize("arguments", ["--rows 0", "--rows many", "--network-gbit -1", "--gpu B300", "--recipe judge"])
def test_a_wrong_option_is_argparses(arguments: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    assert ended.value.code == 2
    assert "error: argument" in capsys.readouterr().err


def test_a_plan_imports_nothing_heavy() -> None:
    code = (
        "import sys; from recipes import plan; sys.argv = ['plan', '--rows', '4000', '--model', '8B'];"
        "status = plan.main(); print(status, [name for name in ('torch', 'verl', 'ray', 'transformers') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
