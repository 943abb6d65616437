"""Fixtures for tests of the served catalog."""

from pathlib import Path
from typing import Any

import pytest

from convrec.inference.served_catalog.items import ServedCatalog
from convrec.lists.settings import ListSettings
from tests.convrec.inference.served_catalog.films import LIMITS, write_catalog


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def serve(tmp_path: Path, line_tokenizer: Any) -> Any:
    """serve(state) -> ServedCatalog of FILMS, or of another file, with another tokenizer or delimiter."""

    def serve(
        state: Path | None = None,
        file: Path | None = None,
        tokenizer: Any = line_tokenizer,
        delimiter: str = "\n",
        **limits: int,
    ) -> ServedCatalog:
        lists = ListSettings(delimiter=delimiter)
        limits = LIMITS | limits
        return ServedCatalog(file or write_catalog(tmp_path), tokenizer, lists, tmp_path / "tries", state, **limits)

    return serve
