"""The model that is served: its checkpoint, its version, and what it was trained to be asked."""

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
    """path: a Hugging Face folder or id. lists: as the model was trained; their num_items is what the prompt asks for.
    chat_template_kwargs: of the run that trained it; None where no run of ours has.
    item: what the prompt calls an item. candidates: that it names, of a retrieval. ask: the attributes that it was
    trained to ask about, in turns of at most `max_turns` with the list."""

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
        """Raise UserError where it reads candidates and there is no retrieval."""
        if self.candidates and not retrieval:
            raise UserError(f"{self.version}: trained with CANDIDATES={self.candidates}; give --retrieval its folder")


def find_model(model: str | Path, catalog: Path, item: str | None, num_items: int | None) -> ServedModel:
    """Return the model that a path or an id stands for, and what it was trained with. Raises UserError for no model.

    catalog, item, num_items: as Recommender.load has them.
    """
    path = resolve_model(model, "model ")
    run = run_folder(model)
    trained_with = read_config(run) if run else {}
    noted = _noted_by_conversion(catalog)
    lists = ListSettings.of(setting(trained_with, "convrec") or {})
    if setting(trained_with, "convrec.num_items") is None and noted.get("num_items"):
        lists = replace(lists, num_items=int(noted["num_items"]))
    if num_items is not None:
        if num_items < 1:
            raise UserError(f"num_items {num_items}: at least 1")
        lists = replace(lists, num_items=num_items)
    kwargs = setting(trained_with, "data.apply_chat_template_kwargs")
    return ServedModel(
        path,
        _version(path),
        lists,
        item or noted.get("item") or "movie",
        None if kwargs is None else dict(kwargs),
        setting(trained_with, "convrec.candidates") or 0,
        tuple(setting(trained_with, "convrec.ask") or ()),
        int(setting(trained_with, "convrec.max_turns") or MAX_TURNS),
        int(setting(trained_with, "data.max_prompt_length") or 0),
    )


def _version(path: str) -> str:
    """RUN/global_step_N and the contents; of a Hugging Face id the id."""
    folder = Path(path)
    if not folder.is_dir():
        return path
    check_hugging_face(folder)
    return f"{get_name(folder)}-{fingerprint(folder)[:12]}"


def get_name(folder: Path) -> str:
    """RUN/global_step_N of a checkpoint, and of a folder in it; of another model its folder's name."""
    parts = folder.absolute().parts
    step = next((index for index, part in enumerate(parts) if part.startswith("global_step_")), None)
    return parts[-1] if step is None else "/".join(parts[max(0, step - 1) : step + 1])


def _noted_by_conversion(catalog: Path) -> dict[str, str]:
    """What convrec.data.own has noted in the catalog's file: "item", "num_items"; {} where it did not."""
    try:
        metadata = pq.read_schema(catalog).metadata or {}
    except (OSError, ValueError):
        return {}  # a pickle; or load_catalog says what is wrong
    keys = {name: f"convrec.{name}".encode() for name in ("item", "num_items")}
    return {name: metadata[key].decode() for name, key in keys.items() if key in metadata}
