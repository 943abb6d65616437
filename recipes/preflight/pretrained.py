"""Check the model that a run starts from, and fix the settings of its chat template in the run's config."""

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
    """Check the tokenizer, its chat template and its stop tokens; write the template's arguments into the config.

    Skipped for a model that cannot be downloaded from the Hub here: `findings` reports it for the training machine.

    Args:
        run: its verl_config gets the template's arguments and, if the template reads the clock, a template with a
            fixed date.
        titles: titles that the tokenizer must be able to write.
        lists: whether the model answers with lists; a judge thinks before its verdict.

    Returns:
        One line for each argument that was added.

    Raises:
        UserError: the model cannot train.
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
    own_arguments = _read_arguments(run, model.path)
    if lists:
        arguments = template.build_list_arguments(tokenizer, own_arguments)
    else:
        arguments = template.build_date_arguments(tokenizer, own_arguments)
    if lists:
        template.check_answer(name, tokenizer, arguments)
    check_stops(name, tokenizer, model.path, arguments)
    with open_dict(run.verl_config) as config:
        OmegaConf.update(config, KEY, arguments, force_add=True)
        if template.is_frozen(tokenizer):
            model.custom_chat_template = tokenizer.chat_template
    return _describe_additions(name, own_arguments, arguments, template.is_frozen(tokenizer))


def _read_arguments(run: Run[TrainingConfig], model_path: str) -> dict[str, Any]:
    """Return the template arguments of the run that trained the model, overridden by those of the user."""
    source = run_folder(model_path)
    saved_arguments = setting(read_config(source), KEY) if source else None
    return {**(saved_arguments or {}), **run.template_arguments}


def _describe_additions(
    name: str, own_arguments: dict[str, Any], arguments: dict[str, Any], is_frozen: bool
) -> list[str]:
    lines = []
    for key, value in arguments.items():
        if key in own_arguments:
            continue
        if value is False:
            lines.append(f"{name}: thinking is turned off for lists ({KEY}.{key}=false)")
        else:
            lines.append(f"{name}: its chat template writes the date; in this run it is {value} ({KEY}.{key})")
    if is_frozen:
        date = template.FIXED_DATE.strftime("%d %b %Y")
        lines.append(f"{name}: its chat template writes today's date; in this run it is {date} (custom_chat_template)")
    return lines
