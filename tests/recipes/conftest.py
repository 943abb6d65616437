"""A small sample of the project's own data."""

from pathlib import Path

import pytest

from data_prep.sample import write_sample


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    counts = {"train": 40, "validation": 10, "test": 10}
    return write_sample(tmp_path_factory.mktemp("sample") / "data", counts=counts)
