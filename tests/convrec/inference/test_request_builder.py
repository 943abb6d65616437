"""Requests for lists; test_columns, test_retrieval and test_recommender have those of a loaded recommender."""

from pathlib import Path
from typing import Any
from unittest import mock

from convrec.inference.served_catalog.items import ServedCatalog
from convrec.inference.served_catalog.snapshot import Title
from convrec.lists.settings import ListSettings
from tests.convrec.inference.served_catalog.films import LIMITS, make_requests, write_catalog
from tests.user_errors import refuses


def test_a_repeated_name_is_looked_up_once(tmp_path: Path, line_tokenizer: Any) -> None:
    catalog = ServedCatalog(write_catalog(tmp_path), line_tokenizer, ListSettings(), tmp_path / "tries", **LIMITS)
    requests = make_requests(catalog)
    names = ["Heat", "Heat", Title("Heat"), 300, "300"] * 50
    with mock.patch.object(ServedCatalog, "find", autospec=True, side_effect=ServedCatalog.find) as find:
        assert len(requests.find_items("seen", names, catalog.snapshot)) == 3
    assert find.call_count == 4
    with refuses("recommender.items", "liked[1]", "True"):
        requests.find_items("liked", ["Heat", True], catalog.snapshot)
