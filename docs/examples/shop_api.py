"""A shop's own FastAPI application with the recommender in it: no other service, no HTTP between the two.

    RUN=outputs/demo/rank_grpo CATALOG=outputs/demo/data/catalog.parquet \\
        uvicorn shop_api:app --app-dir docs/examples

The engine is loaded once, at the start, and asked by as many requests at once as come.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from convrec import Recommender
from convrec.base.errors import UserError


@asynccontextmanager
async def engine(app: FastAPI) -> AsyncIterator[None]:
    with Recommender.load(os.environ["RUN"], os.environ["CATALOG"]) as app.state.recommender:
        yield


app = FastAPI(lifespan=engine)


class Visit(BaseModel):
    said: str = Field(min_length=1, max_length=4000)
    bought: list[str] = []  # item ids: never recommended again
    in_stock: list[str] | None = None  # the only ones that may be; null: all of the catalog


@app.post("/for-you")
async def for_you(visit: Visit) -> dict[str, Any]:
    try:
        found = await app.state.recommender.arecommend(visit.said, k=5, seen=visit.bought, allow=visit.in_stock)
    except UserError as error:  # what was asked cannot be answered: the sentence says why
        raise HTTPException(400, str(error)) from None
    return {"list_id": found.list_id, "items": [asdict(item) for item in found], "why_short": found.reason}
