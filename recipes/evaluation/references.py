"""The model that each model of a report is compared with: the one that its run started from, or the first."""

from collections.abc import Mapping
from pathlib import Path

from convrec.checkpoints.models import run_folder
from convrec.runs.folder import start_model
from recipes.evaluation.scoring import Settings


def choose_references(settings: Mapping[str, Settings]) -> dict[str, str]:
    """Choose the model that each model is compared with.

    It is the model that its run started from, if that one is evaluated too, otherwise the first one.

    Args:
        settings: name -> settings of its evaluation, as metrics.json has them; at least one.

    Returns:
        Name -> name of its reference, in the order of `settings`. One model has none: the first, or, if the first was
        started from another model here, the one where these runs began.

    Raises:
        UserError: the config of a run is damaged.
    """
    names: dict[str, str] = {}
    for name, of in settings.items():
        names.setdefault(_normalize_model(of["model_path"]), name)
    starts = {}
    for name, of in settings.items():
        start = names.get(_find_initial_model(of["model_path"]), name)
        if start != name:
            starts[name] = start
    first = next(iter(settings))
    origin = first
    for _ in starts:
        origin = starts.get(origin, origin)
    return {name: starts.get(name, first) for name in settings if name != origin}


def _find_initial_model(model: str) -> str:
    """Return the model that the run of a checkpoint started from; "" for a model that is not of a run."""
    run = run_folder(model)
    start = start_model(run) if run else None
    return _normalize_model(start) if start else ""


def _normalize_model(model: str) -> str:
    """Return the absolute path of a folder, and any other model as it is: an id of the Hub, `api:NAME`."""
    folder = Path(model).expanduser()
    return str(folder.resolve()) if folder.is_dir() else model
