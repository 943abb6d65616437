"""The one command: every module that can be started is there, and is started with its own arguments."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from recipes import cli

ROOT = Path(__file__).resolve().parents[2]
NOT_COMMANDS = {  # started by other modules, or by the shell recipes alone
    "recipes.cli",
}


def convrec(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "recipes.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def started_as_modules() -> set[str]:
    """Modules of recipes/ and data_prep/ that a user starts: those at the top, and the judges' training."""
    files = [*ROOT.glob("recipes/*.py"), *ROOT.glob("data_prep/*.py"), ROOT / "recipes" / "judge" / "train.py"]
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in files
        if 'if __name__ == "__main__"' in file.read_text()
    }


def test_every_module_that_can_be_started_is_a_command() -> None:
    modules = {module for module, _ in cli.COMMANDS.values()}
    assert modules == started_as_modules() - NOT_COMMANDS
    assert all(find_spec(module) for module in modules)


def test_the_help_names_every_command_and_imports_none(tmp_path: Path) -> None:
    top = convrec("--help")
    assert top.returncode == 0
    for typed in cli.COMMANDS:
        assert typed.split()[0] in top.stdout
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, sys\n"
        "heavy = {'torch', 'verl', 'ray', 'pyarrow'}\n"
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules)), file=sys.stderr))"
    )
    assert convrec("--help", PYTHONPATH=str(tmp_path)).stderr.strip() == "[]"


def test_a_command_gets_its_arguments_and_gives_its_status(tmp_path: Path) -> None:
    made = convrec(
        "data", "sample", "--out", str(tmp_path / "data"), "--train", "20", "--validation", "5", "--test", "5"
    )
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "data" / "train.parquet").is_file()
    refused = convrec("train", "sft", "--dry-run", TRAIN_FILE=str(tmp_path / "none.parquet"))
    assert refused.returncode == 2
    assert "error: " in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("typed", "script"),
    [
        (("train", "sft"), "run_sft.sh"),
        (("train", "rank-grpo"), "run_rank_grpo.sh"),
        (("train", "judge", "pairwise"), "recipes/judge/run_pairwise.sh"),
    ],
)
def test_with_an_address_the_help_is_the_recipes_still(typed: tuple[str, ...], script: str) -> None:
    assert f"bash {script} " in convrec(*typed, "--help", RAY_ADDRESS="http://127.0.0.1:9").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("recipes.cli", "--help"),
        ("recipes.sft", "--help"),
        ("recipes.plan", "--model=8B", "--rows=4000", "--val-rows=9"),
    ],
)
def test_what_nobody_reads_to_its_end_is_no_error(arguments: tuple[str, ...]) -> None:
    """As `COMMAND | head -1`, with a reader that has left before the first line."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, timeout=300, check=False)
    os.close(write_end)
    assert done.returncode in (-signal.SIGPIPE, 128 + signal.SIGPIPE)
    assert done.stderr == b""


@pytest.mark.parametrize("module", ["recipes.sft", "recipes.cli", "data_prep.own"])
def test_outside_of_its_environment_a_command_says_so(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", module],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pyarrow" in done.stderr
    assert "make setup" in done.stderr


def test_the_version_is_the_packages() -> None:
    assert convrec("--version").stdout.strip().count(".") == 2
