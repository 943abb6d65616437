"""What a matrix file may say. docs/examples/matrix.yaml is an annotated one."""

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
from convrec.base.kinds import did_you_mean, shown
from convrec.base.options import check_sampling
from recipes.evaluation.options import EvaluationOptions
from recipes.launch.recipe import RECIPES

LIST_RECIPES = [recipe.name for recipe in RECIPES.values() if recipe.answers == "lists"]
NOT_OF_A_MATRIX = ("model", "out", "against", "run", "progress")  # given for each run, or no option of a command
SEEDS = "a list in [], each of it an integer of at least 0"
VARIABLES = "names with their values, such as {LR: 1e-6}"

Text = Annotated[str, Field(min_length=1)]
Checked = TypeVar("Checked", bound="Section")


class Section(BaseModel):
    """The description of a field is what an error says is expected there."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Preparation(Section):
    creates: Text
    run: Text


class RunSection(Section):
    recipe: str = Field("rank_grpo", pattern=f"^({'|'.join(LIST_RECIPES)})$", description=" or ".join(LIST_RECIPES))
    start: Text | None = Field(None, description="the name of a run that comes before it")
    model: Text | None = Field(None, description="a model that is evaluated as it is")
    seeds: list[NonNegativeInt] | None = Field(None, description=SEEDS)
    variables: dict[str, Any] | None = Field(None, description=VARIABLES)
    overrides: list[Text] | None = Field(None, description="a list in [], each of it text")


class Matrix(Section):
    """The whole file. runs: a RunSection each. evaluate: an EVALUATION."""

    out: Text = Field(description="the name of a folder")
    prepare: list[Preparation] | None = Field(None, description="{creates: FILE, run: COMMAND} for each step")
    variables: dict[str, Any] | None = Field(None, description=VARIABLES)
    seeds: list[NonNegativeInt] = Field([3407], description=SEEDS)
    runs: dict[Any, dict[str, Any] | None] = Field(description="names with their settings, such as {a: {recipe: sft}}")
    evaluate: dict[str, Any] = Field(description="names with their values, such as {data: test.parquet, ks: [5]}")


def _evaluation() -> type[Section]:
    """The EvaluationOptions that are the same for all runs."""
    options: dict[str, Any] = {
        one.name: (one.type, one.default) for one in fields(EvaluationOptions) if one.name not in NOT_OF_A_MATRIX
    }
    options["data"] = str, Field(description="the split to score, a parquet file")
    options["catalog"] = str, Field(description="the catalog of its items, a parquet file")
    options["ks"] = list[PositiveInt] | None, None
    options["sampling"] = Annotated[dict[str, Any], AfterValidator(check_sampling)] | None, None
    options["skip_damaged"] = float | None, None  # pydantic knows no DamagedShare
    return create_model("Evaluation", __base__=Section, **options)


EVALUATION = _evaluation()


def read_matrix(path: Path) -> Matrix:
    """The file with environment variables filled in. Raises UserError naming what is unset, unknown or missing."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        text = os.path.expandvars(path.read_text(encoding="utf-8"))
        content = yaml.safe_load(text)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable as YAML ({error}); indent with spaces, close what is opened") from None
    if unset := re.search(r"\$\{?([A-Za-z_]\w*)", "\n".join(line.split("#")[0] for line in text.splitlines())):
        raise UserError(f"{path}: the environment variable {unset[1]} is not set")
    try:
        matrix = checked(Matrix, content if isinstance(content, dict) else {})
        checked(EVALUATION, matrix.evaluate, "evaluate.")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return matrix


def checked(section: type[Checked], values: dict[str, Any], prefix: str = "") -> Checked:
    """The section with these values. Raises UserError: which setting, what is expected there, what stands there.

    prefix: what stands before a name in messages, `evaluate.` say.
    """
    try:
        return section.model_validate(values)
    except ValidationError as error:
        # first a name that is none: it may be what is missing, misspelt
        mistake = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    name = str(mistake["loc"][0])
    known = section.model_fields
    where = prefix + ".".join(map(str, mistake["loc"]))
    if name not in known:
        raise UserError(f"{where} is no setting here; {did_you_mean(name, known)}")
    expected = known[name].description
    if mistake["loc"] == (name,) and mistake["type"] == "missing":
        raise UserError(f"{where}: missing; give {expected}")
    raise UserError(
        f"{where}: {f'expected {expected}' if expected else mistake['msg']}; it is {shown(mistake['input'])}"
    )
