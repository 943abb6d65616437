"""The one entry: every command is there, starts quickly, with its own arguments and under its supervisor."""

import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from recipes import cli
from recipes.launch.recipe import RECIPES, Recipe

ROOT = Path(__file__).resolve().parents[2]
ROWS = ("--rows", "960", "--val-rows", "9")


def convrec(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "recipes", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["evaluate", "--help"], ["train", "rank-grpo", "--help"], ["plan", *ROWS]], ids=" ".join
)
@pytest.mark.parametrize("unbuffered", ["", "1"])  # it fails at the end, or in the first print
def test_output_that_cannot_be_written_is_one_line(arguments: list[str], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "recipes", *arguments],
            cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: stdout: No space left on device: the output is truncated\n"


def test_every_module_with_a_main_is_a_command() -> None:
    files = [*ROOT.glob("recipes/*.py"), *ROOT.glob("data_prep/*.py")]
    written = {f"{file.parent.name}.{file.stem}" for file in files if "\ndef main(" in file.read_text()}
    of_trainings = {recipe.command for recipe in RECIPES.values()}
    others = {cli.resolve_command(command).__module__ for command in set(cli.COMMANDS) - of_trainings}
    assert of_trainings < set(cli.COMMANDS)
    assert others == written - {"recipes.cli"}


def test_the_help_names_every_command_and_imports_none(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, sys\n"
        "heavy = {'torch', 'verl', 'ray', 'pyarrow', 'omegaconf', 'pydantic'}\n"
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules)), file=sys.stderr))"
    )
    top = convrec("--help", PYTHONPATH=str(tmp_path))
    assert (top.returncode, top.stderr.strip()) == (0, "[]")
    assert all(f"  {command} " in top.stdout and text in top.stdout for command, text in cli.COMMANDS.items())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["train", "--help"], "train judge pairwise"),
        (["--version"], version("convrec")),
        ([], "usage: convrec COMMAND"),
        (["train", "judge"], "train judge pointwise"),
        (["serv", "--model", "x"], "did you mean serve?"),
        (["train", "rank_grpo"], "did you mean train rank-grpo"),
    ],
)
def test_unknown_commands_get_a_list_or_a_suggestion(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.list_commands(arguments) == (0 if arguments and arguments[-1].startswith("--") else 2)
    printed = capsys.readouterr()
    assert text in printed.out + printed.err


def test_help_groups_commands_by_what_somebody_wants(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.list_commands(["--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line in cli.GROUPS] == list(cli.GROUPS)
    assert cli.list_commands(["data", "--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line in cli.GROUPS] == ["Data"]


def test_a_shell_completes_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.list_commands(["--completion", "bash"]) == 0
    script = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert command.split()[-1] in script
    assert "--skip-damaged" in script
    for wrong in (["--completion"], ["--completion", "tcsh"]):
        assert cli.list_commands(wrong) == 2
        assert "bash, zsh, fish" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--k", "0"], ["--kk", "3"], ["--model", "x"]])
def test_a_wrong_option_is_one_line_and_status_2(arguments: list[str]) -> None:
    done = convrec("recommend", *arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith("error: ")


def test_a_command_gets_its_arguments_and_gives_its_status(tmp_path: Path) -> None:
    made = convrec(
        "data", "sample", "--out", str(tmp_path / "data"), "--train", "20", "--validation", "5", "--test", "5"
    )
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "data" / "train.parquet").is_file()
    refused = convrec("train", "sft", "--dry-run", TRAIN_FILE=str(tmp_path / "none.parquet"))
    assert refused.returncode == 2
    assert "error: " in refused.stdout + refused.stderr


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_with_an_http_address_a_training_is_submitted(
    recipe: Recipe, good: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing answers at this address: the submitter says so. It answers Ctrl-C itself, without a supervisor."""
    for name, value in (good | {"RAY_ADDRESS": "http://127.0.0.1:9"}).items():
        monkeypatch.setenv(name, value)
    assert cli.is_submitted(recipe.command)
    assert cli.resolve_command(recipe.command)([]) == 2
    assert "RAY_ADDRESS=http://127.0.0.1:9: " in capsys.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")  # as in the job
    assert not cli.is_submitted(recipe.command)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "sft", "--help"], ["plan", "--model=8B", "--rows=4000", "--val-rows=9"]]
)
def test_what_nobody_reads_to_its_end_is_no_error(arguments: list[str]) -> None:
    """As `COMMAND | head -1`, with a reader that has left before the first line."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "recipes", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, timeout=300, check=False)
    os.close(write_end)
    assert done.returncode in (-signal.SIGPIPE, 128 + signal.SIGPIPE)
    assert done.stderr == b""


def test_outside_of_its_environment_a_command_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", "recipes", "data", "own"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pyarrow" in done.stderr
    assert "make setup" in done.stderr


@pytest.mark.parametrize("given", [None, "/elsewhere"])
def test_torch_compile_cache_is_outside_tmp_from_import_on(
    given: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its default is a folder in /tmp, which an import makes before a run has its own."""
    for name in ("PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, given or "")
    if given is None:
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen: list[str] = []
    doctor = ModuleType("recipes.doctor")  # takes seconds
    doctor.main = lambda _: seen.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "recipes.doctor", doctor)
    with pytest.raises(SystemExit):
        cli.run(["doctor"])
    assert seen == [given or str(tmp_path / "convrec" / "torchinductor")]
