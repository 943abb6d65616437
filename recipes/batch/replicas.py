"""What a replica of batch recommendation loads: a Recommender, whose lists cannot be wrong and have scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from convrec.generation.process import Died
from convrec.serving.recommender import Recommender
from recipes.batch.chats import Chat
from recipes.batch.parts import recommend_part

TARGET = "recipes.batch.replicas:load"


@dataclass(frozen=True)
class Asked:
    """What every replica loads and writes. model: a Hugging Face folder or id, as find_model has resolved it; settings:
    further ones of Recommender.load."""

    model: str
    catalog: str
    k: int
    tensor_parallel: int
    settings: dict[str, Any]


def load(asked: Asked) -> Callable[[list[Chat], Callable[[int], None]], pa.Table]:
    """Returns what writes the lists of a part, rows of recipes.batch.parts.SCHEMA."""
    recommender = Recommender.load(
        asked.model, asked.catalog, max_items=asked.k, tensor_parallel=asked.tensor_parallel, **asked.settings
    )

    def write(chats: list[Chat], tell: Callable[[int], None]) -> pa.Table:
        try:
            return recommend_part(recommender, chats, asked.k)
        except Exception:
            if recommender.engine.is_alive:
                raise
            raise Died("the process of its engine is gone") from None

    return write
