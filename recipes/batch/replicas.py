"""What a replica of batch recommendation loads: a Recommender, whose lists cannot be wrong and have scores."""

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from convrec.inference.engines.process import Died
from convrec.inference.recommender import Filters, Recommendations, Recommender
from convrec.inference.served_catalog.items import ServedCatalog
from convrec.inference.served_catalog.snapshot import LINE
from convrec.titles.forms import normalise
from recipes.batch.chats import Chat
from recipes.batch.parts import SCHEMA

_YEAR = re.compile(r"[(（]\d{4}[)）]")


def load(settings: dict[str, Any]) -> Callable[[list[Chat], Callable[[int], None]], pa.Table]:
    """settings: of Recommender.load, and `why`. Returns what writes the lists of a part, of max_items each: a row of
    SCHEMA for each chat."""
    recommender = Recommender.load(**{name: settings[name] for name in settings.keys() - {"why", "weighed"}})

    def write(chats: list[Chat], tell: Callable[[int], None]) -> pa.Table:
        try:
            filters = [Filters(**chat.filters, why=settings["why"]) for chat in chats]
            lists = recommender.recommend_batch([chat.conversation for chat in chats], settings["max_items"], filters)
        except Exception:
            if recommender.engine.is_alive:
                raise
            raise Died("the process of its engine is gone") from None
        unknown = [unknown_names(chat, recommender.catalog) for chat in chats]
        return pa.Table.from_pylist(list(map(_row, chats, lists, unknown)), SCHEMA)

    return write


def unknown_names(chat: Chat, catalog: ServedCatalog) -> list[str]:
    """What `seen`, `allow`, `exclude` and `liked` have that is no item of the catalog. `Heat (1995), Up (2009)` is
    found as the first of the two: with a second year it must be a whole line."""
    snapshot = catalog.snapshot
    named = chat.filters
    names = (*named["seen"], *(named["allow"] or ()), *named["exclude"], *named["liked"])

    def is_item(name: str | int) -> bool:
        is_line = len(_YEAR.findall(str(name))) < 2 or LINE + normalise(str(name)) in snapshot.named
        return is_line and bool(catalog.find(name, snapshot))

    return [str(name) for name in names if not is_item(name)]


def _row(chat: Chat, found: Recommendations, unknown: list[str]) -> dict[str, Any]:
    return {
        "row": chat.row,
        "id": chat.id,
        "items": [vars(item) | {"columns": json.dumps(item.columns)} for item in found.items],
        "reason": found.reason,
        "prompt_truncated": found.prompt_truncated,
        "unknown": unknown,
    }
