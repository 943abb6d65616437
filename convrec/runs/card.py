"""Write the model card of a checkpoint in Hugging Face form: base model, data, settings and validation scores.

RUN/config.yaml and RUN/metrics have them; the user fills in the licence.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convrec.base.files import write_text
from convrec.runs.folder import listed, read_config, read_metrics, setting, start_model

CARD = "README.md"
SETTINGS = (  # settings that determine what a model learns; every run has some of them
    "optim.lr",
    "actor_rollout_ref.actor.optim.lr",
    "convrec.lr_schedule",
    "data.train_batch_size",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.kl_loss_coef",
    "convrec.reward",
    "convrec.preset",
    "convrec.matching",
    "convrec.num_items",
    "data.max_length",
    "data.max_prompt_length",
    "data.max_response_length",
    "data.seed",
)
VALIDATED = ("val/loss", "val/ndcg", "val/recall", "val/catalog_hit_ratio", "val/score")
ERROR = "_se"
_BASE = re.compile(r"^base_model: (\S+)$", re.MULTILINE)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def front_matter(base_model: str | None, tags: Sequence[str]) -> str:
    """Return the YAML header that the Hub reads.

    `license` is `other` until somebody who knows the licences of base model and data enters the right one.

    Args:
        base_model: an id, or a folder whose own card names one; otherwise the header names no base model.
        tags: for the Hub's search.
    """
    base = find_hub_base(base_model) if base_model else None
    lines = [f"base_model: {base}"] if base else []
    lines += ["library_name: transformers", "pipeline_tag: text-generation", f"tags: [{', '.join(tags)}]"]
    return "\n".join(["---", *lines, "license: other", "---", ""])


def find_hub_base(model: str) -> str | None:
    """Find the Hub's id of a model, or of the base model that its card names.

    Args:
        model: a folder, or an id such as Qwen/Qwen3-0.6B.

    Returns:
        The id; None for a folder without a card, or whose card names none.
    """
    card = Path(model).expanduser() / CARD
    if card.is_file():
        match = _BASE.search(card.read_text(encoding="utf-8"))
        return match[1] if match else None
    return model if _HUB_ID.fullmatch(model) and not Path(model).exists() else None


def sections(run_folder: Path, step: int) -> str:
    """Describe the checkpoint of a step in Markdown.

    Args:
        run_folder: the folder of an SFT or RL run.
        step: the checkpoint's step; validations after it are left out.

    Returns:
        The paragraphs below a card's title: data, settings, newest validation, licence. "" without config.yaml.
    """
    config = read_config(run_folder)
    if not config:
        return ""
    values = {key: setting(config, key) for key in SETTINGS}
    settings = [(key, value) for key, value in values.items() if value is not None]
    files = [file for key in ("train_files", "val_files") for file in listed(setting(config, f"data.{key}"))]
    data = ", ".join(f"`{Path(file).name}`" for file in files)
    parts = [
        f"Step {step} of the run `{run_folder.name}`, trained with convrec on {data}.",
        _format_table(("setting", "value"), settings),
        _describe_validation(run_folder, step),
        "Licence: fill in the licences of the base model and the data; `license` above is a placeholder.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_card(model_folder: Path, run_folder: Path, step: int) -> None:
    """Write README.md for a checkpoint of SFT, Rank-GRPO, GRPO or GSPO in Hugging Face form.

    Args:
        model_folder: the folder of the model's files; a README.md in it is replaced.
        run_folder: the run that trained the model.
        step: the checkpoint's step.
    """
    run = read_config(run_folder).get("run") or {}
    method = str(run.get("algorithm") or run.get("recipe") or "convrec")
    base = start_model(run_folder)
    title = f"# A conversational recommender ({method})\n"
    origin = f"Trained from `{find_hub_base(base) or Path(base).name}`.\n\n" if base else ""
    text = (
        front_matter(base, ["recommendation", "conversational", method]) + title + origin + sections(run_folder, step)
    )
    write_text(model_folder / CARD, text)


def _format_table(head: tuple[str, str], rows: Sequence[tuple[str, Any]]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| `{name}` | {value} |" for name, value in rows)]
    return "\n".join(lines) if rows else ""


def _describe_validation(run_folder: Path, step: int) -> str:
    """Return the newest validation up to this step, with standard errors if they were logged."""
    rows = [
        row
        for row in read_metrics(run_folder)
        if row["step"] <= step and any(row.get(name) is not None for name in VALIDATED)
    ]
    if not rows:
        return ""
    newest = rows[-1]
    values = []
    for name in VALIDATED:
        if newest.get(name) is not None:  # None: it was not a number
            error = newest.get(name + ERROR)
            values.append((name, f"{newest[name]:.4f}" + (f" ± {error:.4f}" if error is not None else "")))
    table = _format_table(("metric", "value"), values)
    return f"Validation at step {newest['step']} (± one standard error):\n\n{table}"
