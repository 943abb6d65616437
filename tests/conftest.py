"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with the recorded goldens and real data: `../shared` beside the repository, else $CONVREC_SHARED."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    named = os.environ.get("CONVREC_SHARED")
    for folder in (beside, Path(named) if named else None):
        if folder and folder.is_dir():
            return folder
    pytest.skip("no ../shared beside the repository and CONVREC_SHARED is not set: recorded goldens not compared")
