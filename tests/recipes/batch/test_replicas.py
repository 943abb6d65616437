"""What a replica of batch recommendation refuses to load; its lists are tested with the recommender."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.files import file_hash
from recipes.batch.replicas import load
from tests.user_errors import refuses


class Engine:
    """Stands for vLLM's engine, which no list is asked of here."""

    is_alive = True

    def __init__(self, model: str, trie_file: str, **settings: object) -> None: ...

    def close(self) -> None: ...


def test_a_replica_refuses_another_catalog_than_that_of_the_request(
    unread_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica starts long after the request was read, or again after it died."""
    monkeypatch.setattr("convrec.inference.engines.async_engine.Engine", Engine)
    catalog = tmp_path / "catalog.parquet"
    pq.write_table(pa.table({"title": ["Heat", "Ran"], "year": [1995, 1985]}), catalog)
    settings = {"model": unread_model, "catalog": str(catalog), "max_items": 1, "why": False}
    settings["catalog_sha256"] = file_hash(catalog)
    load(settings)
    pq.write_table(pa.table({"title": ["Heat", "Up"], "year": [1995, 2009]}), catalog)
    with refuses("catalog.changed", catalog):
        load(settings)
