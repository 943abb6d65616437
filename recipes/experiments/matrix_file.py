"""The format of a matrix file. docs/examples/matrix.yaml is an annotated example."""

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    create_model,
)

from convrec.base.errors import UserError
from convrec.base.kinds import did_you_mean, to_yaml_scalar
from convrec.base.options import check_sampling
from recipes.evaluation.options import EvaluationOptions
from recipes.launch.recipe import RECIPES

LIST_RECIPES = [recipe.name for recipe in RECIPES.values() if recipe.answers == "lists"]
PER_RUN_OPTIONS = ("model", "out", "against", "run", "progress")  # set for each run, or not an option of the command
SEEDS = "a list in [] of integers of at least 0"
VARIABLES = "names with their values, such as {LR: 1e-6}"

Text = Annotated[str, Field(min_length=1)]
AnySection = TypeVar("AnySection", bound="Section")


class Section(BaseModel):
    """A part of the file. Errors quote a field's description as the expected value."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Preparation(Section):
    """A command that makes data; it runs only if the file or folder `creates` does not exist."""

    creates: Text
    run: Text


class RunSection(Section):
    """An entry of `runs`: one run for each combination of listed values and seeds."""

    recipe: str = Field("rank_grpo", pattern=f"^({'|'.join(LIST_RECIPES)})$", description=" or ".join(LIST_RECIPES))
    start: Text | None = Field(None, description="the name of an earlier run")
    model: Text | None = Field(None, description="a model that is evaluated without training")
    seeds: list[NonNegativeInt] | None = Field(None, description=SEEDS)
    variables: dict[str, Any] | None = Field(None, description=VARIABLES)
    overrides: list[Text] | None = Field(None, description="a list in [] of texts")


class Matrix(Section):
    """The whole file. The values of `runs` are RunSections, `evaluate` is an EVALUATION."""

    out: Text = Field(description="the name of a folder")
    prepare: list[Preparation] | None = Field(None, description="{creates: FILE, run: COMMAND} for each step")
    variables: dict[str, Any] | None = Field(None, description=VARIABLES)
    seeds: list[NonNegativeInt] = Field([3407], description=SEEDS)
    runs: dict[Any, dict[str, Any] | None] = Field(description="names with their settings, such as {a: {recipe: sft}}")
    evaluate: dict[str, Any] = Field(description="names with their values, such as {data: test.parquet, ks: [5]}")


def _make_evaluation_section() -> type[Section]:
    """Return a section with the EvaluationOptions that are the same for all runs."""
    options: dict[str, Any] = {
        option.name: (option.type, option.default)
        for option in fields(EvaluationOptions)
        if option.name not in PER_RUN_OPTIONS
    }
    options["data"] = str, Field(description="the split to score, a parquet file")
    options["catalog"] = str, Field(description="the catalog of items, a parquet file")
    options["ks"] = list[PositiveInt] | None, None
    options["sampling"] = Annotated[dict[str, Any], AfterValidator(check_sampling)] | None, None
    options["skip_damaged"] = float | None, None  # pydantic knows no DamagedShare
    return create_model("Evaluation", __base__=Section, **options)


EVALUATION = _make_evaluation_section()


def read_matrix(path: Path) -> Matrix:
    """Read a matrix file; environment variables in it are replaced by their values.

    Raises:
        UserError: a variable is unset, or a setting is unknown, missing or wrong.
    """
    if not path.is_file():
        raise UserError("matrix.missing-file", f"{path}: no such file")
    try:
        text = os.path.expandvars(path.read_text(encoding="utf-8"))
        content = yaml.safe_load(text)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(
            "matrix.invalid-yaml",
            f"{path}: not valid YAML ({error}). Indent with spaces, and close every bracket and quote.",
        ) from None
    if unset := re.search(r"\$\{?([A-Za-z_]\w*)", "\n".join(line.split("#")[0] for line in text.splitlines())):
        raise UserError("matrix.unset-variable", f"{path}: the environment variable {unset[1]} is not set")
    try:
        matrix = validate_section(Matrix, content if isinstance(content, dict) else {})
        validate_section(EVALUATION, matrix.evaluate, "evaluate.")
    except UserError as error:
        raise UserError(error.code, f"{path}: {error}") from None
    return matrix


def validate_section(section: type[AnySection], values: dict[str, Any], prefix: str = "") -> AnySection:
    """Return a section with these values.

    Args:
        section: its class.
        values: setting -> value, as read from the file.
        prefix: prefix of setting names in messages, for example `evaluate.`.

    Raises:
        UserError: a setting is unknown, missing or wrong; the message has the expected value.
    """
    try:
        return section.model_validate(values)
    except ValidationError as error:
        # Unknown names first: such a name may be a misspelling of the missing one.
        mistake = min(error.errors(), key=lambda details: details["type"] != "extra_forbidden")
    name = str(mistake["loc"][0])
    settings = section.model_fields
    where = prefix + ".".join(map(str, mistake["loc"]))
    if name not in settings:
        raise UserError("matrix.unknown-setting", f"{where}: no such setting; {did_you_mean(name, settings)}")
    expected = settings[name].description
    if mistake["loc"] == (name,) and mistake["type"] == "missing":
        raise UserError("matrix.missing-setting", f"{where}: missing; give {expected}")
    problem = f"expected {expected}" if expected else mistake["msg"]
    raise UserError("matrix.wrong-setting", f"{where}={to_yaml_scalar(mistake['input'])}: {problem}")
