"""Check the model that a run starts from, and fix in the run's config what would change its prompts."""

from collections.abc import Sequence
from typing import Any

from omegaconf import OmegaConf, open_dict

from convrec.checkpoints import hub
from convrec.checkpoints.models import run_folder
from convrec.data import template
from convrec.data.tokenizer import check_stops, load_tokenizer
from convrec.runs.folder import read_config, setting
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig

KEY = "data.apply_chat_template_kwargs"


def prepare(run: Run[TrainingConfig], titles: Sequence[str] = (), lists: bool = True) -> list[str]:
    """Check the tokenizer, its chat template and its stop tokens; note in the config what the template is given.

    A model of the Hub that is not to be had is not looked into: `findings` says so, of the machine that trains.

    Args:
        run: its verl_config gets the template's arguments and, where the template calls the clock, the template.
        titles: what the model is to write.
        lists: whether its answers are lists; a judge thinks before its verdict.

    Returns a line for each thing that was fixed. Raises UserError for a model that cannot train.
    """
    model = run.model_section
    if not hub.is_folder(model.path) and hub.problem(model.path):
        return []
    name = f"MODEL_PATH={model.path}"
    tokenizer, _ = load_tokenizer(
        model.path,
        "MODEL_PATH=",
        titles=titles,
        tokenizer_path=run.tokenizer_path,
        chat_template=model.get("custom_chat_template"),
    )
    given = _given_arguments(run, model.path)
    arguments = template.list_arguments(tokenizer, given) if lists else template.date_arguments(tokenizer, given)
    if lists:
        template.check_answer(name, tokenizer, arguments)
    check_stops(name, tokenizer, model.path, arguments)
    with open_dict(run.verl_config) as config:
        OmegaConf.update(config, KEY, arguments, force_add=True)
        if template.is_frozen(tokenizer):
            model.custom_chat_template = tokenizer.chat_template
    return _fixed(name, given, arguments, template.is_frozen(tokenizer))


def _given_arguments(run: Run[TrainingConfig], model_path: str) -> dict[str, Any]:
    """The user's arguments of the template, over those of the run that the model comes from."""
    start = run_folder(model_path)
    of_start = setting(read_config(start), KEY) if start else None
    return {**(of_start or {}), **run.template_arguments}


def _fixed(name: str, given: dict[str, Any], arguments: dict[str, Any], is_frozen: bool) -> list[str]:
    """A line for each argument that this run has added."""
    lines = []
    for key, value in arguments.items():
        if key in given:
            continue
        if value is False:
            lines.append(f"{name}: thinking is turned off for lists ({KEY}.{key}=false)")
        else:
            lines.append(f"{name}: its chat template writes the date; in this run it is {value} ({KEY}.{key})")
    if is_frozen:
        date = template.FIXED_DATE.strftime("%d %b %Y")
        lines.append(f"{name}: its chat template writes today's date; in this run it is {date} (custom_chat_template)")
    return lines
