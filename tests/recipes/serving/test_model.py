"""What a model's process says where the fault is not the request's; no engine is needed for that."""

import asyncio
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.inference.recommender import Recommender
from convrec.inference.request_builder import RequestBuilder
from convrec.inference.served_catalog.items import ServedCatalog
from convrec.inference.served_catalog.journal import FILE
from convrec.lists.settings import ListSettings
from recipes.serving.errors import Refused
from recipes.serving.model import ModelServer


def test_a_damaged_file_of_changes_is_a_503_of_every_request(tmp_path, line_tokenizer, caplog):
    file, state = tmp_path / "catalog.parquet", tmp_path / "state"
    pq.write_table(pa.table({"item_id": ["a", "b"], "title": ["Heat", "Ran"], "year": [1995, 1985]}), file)
    catalog = ServedCatalog(file, line_tokenizer, ListSettings(), tmp_path / "tries", state, max_items=2, max_tokens=99)
    server = ModelServer.__new__(ModelServer)
    server.model = SimpleNamespace(version="films-1")
    requests = RequestBuilder(
        server.model, catalog, line_tokenizer, template_arguments={}, max_prompt_length=0, context=0
    )
    server.recommender = Recommender(requests, engine=None)
    server.changing = asyncio.Lock()
    assert asyncio.run(server.describe()) == {"version": "films-1", "catalog_items": 2, "max_items": 2}
    ran = {"item_id": "b", "title": "Ran", "clean_title": "Ran", "year": 1985, "columns": {}}
    assert asyncio.run(server.list_items("a", 9)) == [ran]
    assert asyncio.run(server.delete_items(["x"])) == {"catalog_items": 2, "absent": ["x"]}
    with (state / FILE).open("a") as journal:
        journal.write("no JSON\n")
    changed = (server.delete_items(["a"]), server.list_items("", 9))
    for asked in (server.describe(), server.recommend({"conversation": "hi"}), *changed):
        with pytest.raises(Refused, match="damaged or gone") as refused:
            asyncio.run(asked)
        assert refused.value.status == 503
        assert "catalog.jsonl: a line is not JSON" in caplog.text
