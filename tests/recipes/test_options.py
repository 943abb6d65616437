"""The record of each command: its choices and defaults are those of the code behind it, its examples parse."""

import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from convrec.base import kinds, options
from convrec.base.options import describe_options, help_text, parse
from convrec.data import damage, records
from convrec.features.asking.turns import MAX_TURNS
from convrec.features.asking.users import USERS
from convrec.inference.engines import placement
from convrec.judges.prompt import MAX_RESPONSE_TOKENS, MODES
from convrec.lists.metrics import PROTOCOLS
from convrec.lists.settings import ListSettings
from convrec.llm.client import MAX_RETRIES
from convrec.titles.matching import MATCHERS
from data_prep import build, sample
from data_prep.judge_data.formats import FORMATS
from data_prep.options import judge as judge_data
from data_prep.options.demonstrations import DemonstrationsOptions, StageName
from data_prep.options.output import OutputOptions
from data_prep.options.own import READABLE, FormName, OwnOptions
from data_prep.options.sample import SampleOptions
from data_prep.own_data.forms import FORMS
from data_prep.own_data.source import TRUTHS
from data_prep.sample_data.hard import KIND, KINDS
from data_prep.stages.embeddings import TFIDF_SVD
from recipes import cli
from recipes.evaluation import options as evaluation
from recipes.evaluation.baselines import BASELINES
from recipes.evaluation.slices import SLICES
from recipes.launch.recipe import RECIPES
from recipes.options.gpu_check import PhaseName
from recipes.options.judge import JudgeEvaluationOptions
from recipes.options.plan import PlanOptions
from recipes.options.serve import LimitOptions
from recipes.options.tiny_model import TinyModelOptions
from recipes.planning.figures import GPUS
from recipes.planning.models import KNOWN_MODELS
from recipes.selftest.phases import PHASES
from recipes.serving.schema import Limits
from recipes.tiny_model import MODEL_TYPES

ROOT = Path(__file__).resolve().parents[2]
RECORDS = {
    **{name: cli.resolve_options(name, []) for name in cli.OPTIONS},
    "evaluate --judge": JudgeEvaluationOptions,
}


def option(record: Any, name: str) -> Any:
    return next(option for option in describe_options(record) if name in option.names)


def test_every_command_but_the_trainings_has_a_record() -> None:
    trainings = {recipe.command for recipe in RECIPES.values()}
    assert set(cli.COMMANDS) - trainings == set(cli.OPTIONS)
    assert {name: record.COMMAND for name, record in RECORDS.items()} == {
        name: name.removesuffix(" --judge") for name in RECORDS
    }


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_help_example_parses_and_required_options_come_first(record: Any) -> None:
    examples = [text for text in help_text(record).split("\n\n") if text.startswith("convrec ")]
    assert len(examples) == 1
    for line in examples[0].replace("\\\n", " ").splitlines():
        program, *words = shlex.split(line)
        command_length = len(record.COMMAND.split())
        assert (program, " ".join(words[:command_length])) == ("convrec", record.COMMAND)
        assert isinstance(parse(record, words[command_length:]), record)
    needed = [one.is_required for one in describe_options(record)]
    assert needed == sorted(needed, reverse=True)


@pytest.mark.parametrize(
    ("listed", "table"),
    [
        (get_args(evaluation.Baseline), BASELINES),
        (get_args(evaluation.Protocol), PROTOCOLS),
        (get_args(evaluation.MatchingName), MATCHERS),
        (get_args(evaluation.UserKind), USERS),
        (get_args(FormName), FORMS),
        (get_args(judge_data.FormatName), FORMATS),
        (get_args(judge_data.Mode), MODES),
        (get_args(StageName), [*build.STAGES, "all"]),
        (get_args(PhaseName), [phase.name for phase in PHASES]),
        (option(JudgeEvaluationOptions, "--judge").choices, MODES),
        (option(OwnOptions, "--truth").choices, TRUTHS),
        (option(PlanOptions, "--gpu").choices, sorted(GPUS)),
        (option(PlanOptions, "--recipe").choices, [one.name for one in RECIPES.values() if one.answers == "lists"]),
        (option(SampleOptions, "--requests").choices, sample.REQUESTS),
        (option(TinyModelOptions, "--model-type").choices, MODEL_TYPES),
    ],
)
def test_choices_are_those_of_the_code(listed: tuple[str, ...], table: Any) -> None:
    assert sorted(listed) == sorted(table)


@pytest.mark.parametrize(
    "name",
    [
        "Integer",
        "PositiveInteger",
        "NonNegativeInteger",
        "ItemCount",
        "PositiveNumber",
        "NonNegativeNumber",
        "Fraction",
        "BelowOne",
    ],
)
def test_numbers_are_called_as_in_settings(name: str) -> None:
    """convrec.base.kinds has the kinds of settings; it imports pydantic, for which `--help` does not wait."""
    (parameter,) = getattr(options, name).__metadata__
    assert parameter.converter.read.takes == kinds.describe_type(getattr(kinds, name))


def test_defaults_are_those_of_the_code() -> None:
    for record in (DemonstrationsOptions, OutputOptions, SampleOptions):
        assert record.num_items == ListSettings.num_items
    assert (DemonstrationsOptions.embedding, DemonstrationsOptions.retries) == (TFIDF_SVD, MAX_RETRIES)
    assert JudgeEvaluationOptions.max_response_length == MAX_RESPONSE_TOKENS
    assert {one.name: one.default for one in fields(LimitOptions)} == {
        name: limit.default for name, limit in Limits.model_fields.items()
    }
    counts = {"train": SampleOptions.train, "validation": SampleOptions.validation, "test": SampleOptions.test}
    assert counts == sample.COUNTS
    assert option(evaluation.EvaluateOptions, "--replicas").default == placement.AUTO
    assert READABLE == records.READABLE


def test_help_texts_name_what_the_code_has() -> None:
    evaluate = evaluation.EvaluateOptions
    for name in ("num_items", "matching", "year_tolerance", "fuzzy_cutoff"):
        flag = f"--{name.replace('_', '-')}"
        assert f"other models: {getattr(ListSettings(), name)})" in option(evaluate, flag).help
    assert f"other models: {MAX_TURNS})" in option(evaluate, "--max-turns").help
    assert ", ".join(SLICES) in option(evaluate, "--slices").help
    assert damage.REPORT in option(evaluate, "--skip-damaged").help
    assert option(PlanOptions, "--model").help.startswith(", ".join(KNOWN_MODELS))
    requests = option(SampleOptions, "--requests").help
    assert f"`{KIND}`" in requests
    assert all(kind in requests for kind in KINDS)


def test_records_import_nothing_that_takes_time() -> None:
    """So that `--help` and a mistyped option answer at once."""
    slow = ("numpy", "pyarrow", "pydantic", "omegaconf", "yaml", "torch", "pandas", "fastapi")
    code = (
        f"import sys; from recipes import cli; [cli.resolve_options(name, []) for name in cli.OPTIONS];"
        f"cli.resolve_options('evaluate', ['--judge']); print([name for name in {slow} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("command", [["data", "own"], ["evaluate"], ["evaluate", "--judge=pairwise"]])
def test_help_and_a_wrong_option_import_none_of_the_work(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, sys\n"
        "slow = {'torch', 'verl', 'ray', 'pyarrow', 'omegaconf', 'pydantic', 'numpy'}\n"
        "atexit.register(lambda: print(sorted(slow & set(sys.modules)), file=sys.stderr))"
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "recipes", *command, *arguments]
        return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    shown = run("--help")
    assert (shown.returncode, shown.stderr.strip()) == (0, "[]")
    assert ("pointwise" in shown.stdout) == ("--judge=pairwise" in command)
    refused = run("--no-such-option")
    assert (refused.returncode, refused.stderr.splitlines()[1:]) == (2, ["[]"])
    assert refused.stderr.startswith("error: ")
