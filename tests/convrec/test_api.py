"""The public names, and how configs become command lines. tests/e2e/test_python_api.py trains."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import convrec
from convrec import CommandFailed, PairwiseJudgeConfig, RankGRPOConfig, SFTConfig, TrainedRun, api
from convrec.base.fields import Settings
from convrec.settings.overrides import overrides
from convrec.settings.run import read_settings
from recipes.launch.recipe import RECIPES
from recipes.launch.settings import compose_files
from tests.user_errors import refuses

HEAVY = ("torch", "verl", "ray", "vllm", "transformers", "omegaconf", "pydantic")


def test_every_public_name_exists() -> None:
    assert [name for name in convrec.__all__ if not callable(getattr(convrec, name))] == []


@pytest.mark.parametrize("before", ["", "import convrec.training.registration; "])
def test_train_is_the_function_although_a_package_has_its_name(before: str) -> None:
    code = f"{before}from convrec import SFTConfig, train; train(SFTConfig(), nothing=1)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "train() got an unexpected keyword argument 'nothing'" in process.stderr


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, convrec; print(*{{*{HEAVY!r}}} & sys.modules.keys())"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "\n"


@pytest.mark.parametrize(
    ("recipe", "config"),
    [
        (
            "sft",
            SFTConfig(model="a/b", train_file="it's, a=file.parquet", output_dir="/runs/x", seed=7, save_keep=2),
        ),
        (
            "rank_grpo",
            RankGRPOConfig(
                delimiter="|",
                learning_rate=3e-7,
                algorithm="gspo",
                ask=["genre", "decade"],
                rewards={"relevance": 1.0, "catalog.price (EUR)": -0.1},
                lr_schedule=[[0, 1e-6], [8000, 1e-7]],
                save_keep=None,
                logger="tensorboard",
                constrained=True,
                preset="reference",
            ),
        ),
        ("judge_pairwise", PairwiseJudgeConfig(orders="together", tensor_parallel=2, mini_batch_size=8)),
    ],
)
def test_a_config_arrives_in_the_run_unchanged(recipe: str, config: Any) -> None:
    composed = read_settings(compose_files(RECIPES[recipe], overrides(config), environment={}))
    assert type(composed) is type(config)
    assert list_overrides(composed).items() >= list_overrides(config).items()


def list_overrides(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from their defaults, by key, as the command has them."""
    pairs = [line.partition("=") for line in overrides(settings)]
    return {key: value for key, _, value in pairs}


def test_a_run_is_a_path(tmp_path: Path) -> None:
    assert SFTConfig(model=TrainedRun(tmp_path)).model == str(tmp_path)  # type: ignore[arg-type]


@pytest.fixture
def replace_command(tmp_path: Path) -> Callable[[str], str]:
    """Write a program of these shell lines that stands in for Python, and return its path."""

    def replace(lines: str) -> str:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{lines}\n")
        program.chmod(0o755)
        return str(program)

    return replace


def test_a_refusal_is_a_user_error_with_the_commands_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LR", "abc")
    with refuses("variable.wrong-value") as error:
        api.train(SFTConfig(output_dir=str(tmp_path / "run")))
    assert str(error.value) == "LR=abc: expected a number of at least 0"


def test_a_refusal_without_a_code_has_that_of_python(
    replace_command: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        sys, "executable", replace_command("echo 'warning: odd'; echo 'error: LR=x: fix it' >&2; exit 2")
    )
    with refuses("api.refused-input") as error:
        api.train(SFTConfig(output_dir=str(tmp_path / "run")))
    assert str(error.value) == "LR=x: fix it"


def test_another_failure_of_the_command_is_command_failed(
    replace_command: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", replace_command("echo 'failed after 3 s: no memory'; exit 1"))
    with pytest.raises(CommandFailed, match=r"no memory .*run\.log") as error:
        api.train(SFTConfig(output_dir=str(tmp_path / "run")))
    assert error.value.status == 1


def test_interrupts_are_forwarded_to_the_command(replace_command: Callable[[str], str]) -> None:
    """With a notebook's stop button, the output is shown until the command ends; a second interrupt reaches it too."""
    program = replace_command(
        "trap 'trap \"echo at once; exit 130\" INT; echo saves' INT; echo trains; while true; do sleep 0.1; done"
    )
    # A script's background jobs ignore Ctrl-C, and children inherit that.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += f"sys.executable = {program!r}; from convrec import SFTConfig, train; train(SFTConfig())"
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in ("trains", "saves"):
            assert process.stdout.readline() == f"{line}\n"
            process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert out == "at once\n"
    assert error.strip().splitlines()[-1] == "KeyboardInterrupt"


def test_a_command_ends_with_the_process_that_started_it(replace_command: Callable[[str], str]) -> None:
    """A notebook kernel that is killed leaves no training run behind."""
    program = replace_command("echo $$; exec sleep 100")
    code = f"import sys; sys.executable = {program!r}; from convrec import SFTConfig, train; train(SFTConfig())"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        command = psutil.Process(int(process.stdout.readline()))
        process.kill()
    _, alive = psutil.wait_procs([command], timeout=10)
    assert alive == []
