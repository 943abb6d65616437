"""Replicas of batch recommendation: each loads a Recommender, with constrained and scored lists."""

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from convrec.inference.engines.process import Died
from convrec.inference.recommender import Filters, Recommendations, Recommender
from convrec.inference.served_catalog.items import ServedCatalog
from convrec.inference.served_catalog.snapshot import LINE
from convrec.titles.catalog import check_unchanged
from convrec.titles.forms import normalise
from recipes.batch.chats import Chat
from recipes.batch.parts import SCHEMA

_YEAR = re.compile(r"[(（]\d{4}[)）]")


def load(settings: dict[str, Any]) -> Callable[[list[Chat], Callable[[int], None]], pa.Table]:
    """Load a recommender.

    Args:
        settings: arguments of Recommender.load, `why`, and the hash of the catalog that the request was made for.

    Returns:
        A function that computes the lists of a part, max_items each, as a table with a row of SCHEMA per chat.

    Raises:
        UserError: the model cannot be loaded, or the catalog's file has changed since the request was made.
    """
    other_settings = {"why", "weighed", "catalog_sha256"}
    recommender = Recommender.load(**{name: settings[name] for name in settings.keys() - other_settings})
    check_unchanged(settings["catalog"], settings["catalog_sha256"])

    def write(chats: list[Chat], tell: Callable[[int], None]) -> pa.Table:
        try:
            filters = [Filters(**chat.filters, why=settings["why"]) for chat in chats]
            lists = recommender.recommend_batch([chat.conversation for chat in chats], settings["max_items"], filters)
        except Exception:
            if recommender.engine.is_alive:
                raise
            raise Died("the process of the engine is gone") from None
        unknown = [find_unknown_names(chat, recommender.catalog) for chat in chats]
        return pa.Table.from_pylist(list(map(_make_row, chats, lists, unknown)), SCHEMA)

    return write


def find_unknown_names(chat: Chat, catalog: ServedCatalog) -> list[str]:
    """Find the names in `seen`, `allow`, `exclude` and `liked` that are not in the catalog.

    The catalog would find `Heat (1995), Up (2009)` as the first of the two, so a name with a second year must be a
    whole line.

    Args:
        chat: a request.
        catalog: the catalog, read once.

    Returns:
        The names as texts, in that order; [] if all are known.
    """
    snapshot = catalog.snapshot
    filters = chat.filters
    names = (*filters["seen"], *(filters["allow"] or ()), *filters["exclude"], *filters["liked"])

    def is_item(name: str | int) -> bool:
        is_line = len(_YEAR.findall(str(name))) < 2 or LINE + normalise(str(name)) in snapshot.named
        return is_line and bool(catalog.find(name, snapshot))

    return [str(name) for name in names if not is_item(name)]


def _make_row(chat: Chat, recommendations: Recommendations, unknown: list[str]) -> dict[str, Any]:
    return {
        "row": chat.row,
        "id": chat.id,
        "items": [vars(item) | {"columns": json.dumps(item.columns)} for item in recommendations.items],
        "reason": recommendations.reason,
        "prompt_truncated": recommendations.prompt_truncated,
        "unknown": unknown,
    }
