"""The sample's films as a catalog with attributes."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.features.asking.attributes import Attributes, load_attributes
from data_prep.sample_data.films import load_films


@pytest.fixture(scope="session")
def film_catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    films = [film._asdict() for film in load_films().films]
    path = tmp_path_factory.mktemp("films") / "catalog.parquet"
    pq.write_table(pa.Table.from_pylist(films), path)
    return path


@pytest.fixture(scope="session")
def films(film_catalog: Path) -> Attributes:
    return load_attributes(film_catalog, ["genre", "decade"])
