"""The model to serve: its checkpoint, its version, and the prompts that it was trained on."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.checkpoints.files import check_hugging_face, fingerprint
from convrec.checkpoints.models import resolve_model, run_folder
from convrec.features.asking.turns import MAX_TURNS
from convrec.lists.settings import ListSettings
from convrec.runs.folder import read_config, setting


@dataclass(frozen=True)
class ServedModel:
    """A model to serve, with the settings that it was trained with.

    Attributes:
        path: a Hugging Face folder or id.
        version: the checkpoint's name and the beginning of a hash of its contents.
        lists: the grammar of its lists; num_items is the number that the prompt asks for.
        item: what the prompt calls an item.
        chat_template_kwargs: arguments of the chat template in training; None if convrec did not train it.
        candidates: the number of retrieved candidates that its prompts name.
        ask: the attributes that it was trained to ask about.
        max_turns: the maximum number of turns, including the list.
        max_prompt_length: tokens of its training prompts; 0 if unknown.
    """

    path: str
    version: str
    lists: ListSettings
    item: str
    chat_template_kwargs: dict[str, Any] | None
    candidates: int = 0
    ask: tuple[str, ...] = ()
    max_turns: int = MAX_TURNS
    max_prompt_length: int = 0

    def check(self, retrieval: object) -> None:
        """Check that the model gets the candidates that it was trained with.

        Args:
            retrieval: the folder of a retrieval; None or "" without one.

        Raises:
            UserError: the model needs candidates and there is no retrieval.
        """
        if self.candidates and not retrieval:
            raise UserError(
                "model.needs-retrieval",
                f"{self.version}: the model was trained with CANDIDATES={self.candidates}. Set --retrieval to the "
                "folder of a retrieval.",
            )


def find_model(model: str | Path, catalog: Path, item: str | None, num_items: int | None) -> ServedModel:
    """Find the model to serve. A run folder stands for its best checkpoint, or its newest if none was validated.

    Args:
        model: a run folder, a checkpoint, or a Hugging Face folder or id.
        catalog: see Recommender.load; also for `item` and `num_items`.
        item: what the prompt calls an item; None for the run's or the catalog's.
        num_items: the number of items that the prompt asks for; None for the run's or the catalog's.

    Raises:
        UserError: there is no model, or num_items is below 1.
    """
    path = resolve_model(model, "model ")
    run = run_folder(model)
    trained_with = read_config(run) if run else {}
    catalog_notes = _read_catalog_notes(catalog)
    lists = ListSettings.of(setting(trained_with, "convrec") or {})
    if setting(trained_with, "convrec.num_items") is None and catalog_notes.get("num_items"):
        lists = replace(lists, num_items=int(catalog_notes["num_items"]))
    if num_items is not None:
        if num_items < 1:
            raise UserError("model.num-items", f"num_items {num_items}: must be at least 1.")
        lists = replace(lists, num_items=num_items)
    kwargs = setting(trained_with, "data.apply_chat_template_kwargs")
    return ServedModel(
        path=path,
        version=_make_version(path),
        lists=lists,
        item=item or catalog_notes.get("item") or "movie",
        chat_template_kwargs=None if kwargs is None else dict(kwargs),
        candidates=setting(trained_with, "convrec.candidates") or 0,
        ask=tuple(setting(trained_with, "convrec.ask") or ()),
        max_turns=int(setting(trained_with, "convrec.max_turns") or MAX_TURNS),
        max_prompt_length=int(setting(trained_with, "data.max_prompt_length") or 0),
    )


def _make_version(path: str) -> str:
    """Return RUN/global_step_N and the beginning of a hash of the contents; for a Hugging Face id, the id."""
    folder = Path(path)
    if not folder.is_dir():
        return path
    check_hugging_face(folder)
    return f"{get_name(folder)}-{fingerprint(folder)[:12]}"


def get_name(folder: Path) -> str:
    """Return RUN/global_step_N for a checkpoint or a folder in it; for any other model, the folder's name."""
    parts = folder.absolute().parts
    step = next((index for index, part in enumerate(parts) if part.startswith("global_step_")), None)
    return parts[-1] if step is None else "/".join(parts[max(0, step - 1) : step + 1])


def _read_catalog_notes(catalog: Path) -> dict[str, str]:
    """Return the notes of `convrec data own` in the catalog's file, "item" and "num_items"; {} without notes."""
    try:
        metadata = pq.read_schema(catalog).metadata or {}
    except (OSError, ValueError):
        return {}  # a pickle, or a file that load_catalog will refuse
    keys = {name: f"convrec.{name}".encode() for name in ("item", "num_items")}
    return {name: metadata[key].decode() for name, key in keys.items() if key in metadata}
