"""What a replica of batch recommendation loads: a Recommender, whose lists cannot be wrong and have scores."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from convrec.generation.process import Died
from convrec.serving.recommender import Filters, Recommendations, Recommender
from recipes.batch.chats import Chat
from recipes.batch.parts import SCHEMA


def load(settings: dict[str, Any]) -> Callable[[list[Chat], Callable[[int], None]], pa.Table]:
    """settings: of Recommender.load, and `why`. Returns what writes the lists of a part, of max_items each: a row of
    SCHEMA for each chat."""
    recommender = Recommender.load(**{name: value for name, value in settings.items() if name != "why"})

    def write(chats: list[Chat], tell: Callable[[int], None]) -> pa.Table:
        try:
            filters = [Filters(**chat.filters, why=settings["why"]) for chat in chats]
            lists = recommender.recommend_batch([chat.conversation for chat in chats], settings["max_items"], filters)
        except Exception:
            if recommender.engine.is_alive:
                raise
            raise Died("the process of its engine is gone") from None
        return pa.Table.from_pylist([_row(chat, found) for chat, found in zip(chats, lists, strict=True)], SCHEMA)

    return write


def _row(chat: Chat, found: Recommendations) -> dict[str, Any]:
    return {
        "row": chat.row,
        "id": chat.id,
        "items": [vars(item) | {"columns": json.dumps(item.columns)} for item in found.items],
        "reason": found.reason,
        "prompt_truncated": found.prompt_truncated,
    }
