"""The model card of a checkpoint in Hugging Face form: what it was trained from, on what, how, and how well it did.

RUN/config.yaml and RUN/metrics say it; what nobody but the user knows (licences) is left to be filled in.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convrec.base.files import write_text
from convrec.runs.folder import listed, read_config, read_metrics, setting, start_model

CARD = "README.md"
SETTINGS = (  # those that decide what is learned; a run has some of them
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
    """The YAML head that the Hub reads. base_model: an id, or a folder whose own card names one; else it is left out.

    `license` is `other` until somebody who knows the licences of base and data writes the right one.
    """
    base = hub_base(base_model) if base_model else None
    lines = [f"base_model: {base}"] if base else []
    lines += ["library_name: transformers", "pipeline_tag: text-generation", f"tags: [{', '.join(tags)}]"]
    return "\n".join(["---", *lines, "license: other", "---", ""])


def hub_base(model: str) -> str | None:
    """The Hub's id of the model that this one was trained from, over any number of cards; None where none is named."""
    card = Path(model).expanduser() / CARD
    if card.is_file():
        named = _BASE.search(card.read_text(encoding="utf-8"))
        return named[1] if named else None
    return model if _HUB_ID.fullmatch(model) and not Path(model).exists() else None


def sections(run_folder: Path, step: int) -> str:
    """What RUN says about its checkpoint of this step, as Markdown; "" for a folder without config.yaml."""
    config = read_config(run_folder)
    if not config:
        return ""
    values = {key: setting(config, key) for key in SETTINGS}
    settings = [(key, value) for key, value in values.items() if value is not None]
    files = [file for key in ("train_files", "val_files") for file in listed(setting(config, f"data.{key}"))]
    data = ", ".join(f"`{Path(file).name}`" for file in files)
    parts = [
        f"Step {step} of the run `{run_folder.name}`, trained with convrec on {data}.",
        _table(("setting", "value"), settings),
        _validation(run_folder, step),
        "Licence: fill in those of the base model and of the data; `license` above is a placeholder.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_card(model_folder: Path, run_folder: Path, step: int) -> None:
    """README.md of a checkpoint of SFT, Rank-GRPO, GRPO or GSPO in Hugging Face form."""
    run = read_config(run_folder).get("run") or {}
    method = str(run.get("algorithm") or run.get("recipe") or "convrec")
    base = start_model(run_folder)
    title = f"# A conversational recommender ({method})\n"
    origin = f"Trained from `{hub_base(base) or Path(base).name}`.\n\n" if base else ""
    text = (
        front_matter(base, ["recommendation", "conversational", method]) + title + origin + sections(run_folder, step)
    )
    write_text(model_folder / CARD, text)


def _table(head: tuple[str, str], rows: Sequence[tuple[str, Any]]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| `{name}` | {value} |" for name, value in rows)]
    return "\n".join(lines) if rows else ""


def _validation(run_folder: Path, step: int) -> str:
    """The newest validation up to this step, with standard errors where they were logged."""
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
        if newest.get(name) is not None:  # None: it was no number
            error = newest.get(name + ERROR)
            values.append((name, f"{newest[name]:.4f}" + (f" ± {error:.4f}" if error is not None else "")))
    return f"Validation at step {newest['step']} (± one standard error):\n\n" + _table(("metric", "value"), values)
