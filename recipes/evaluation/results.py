"""What an evaluation has written: metrics.json and rows.parquet."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from convrec.errors import UserError


def metrics_of(folder: Path, given_as: str = "") -> dict[str, Any]:
    """metrics.json, null figures as the NaN that they stood for. Raises UserError when there is none, or a damaged one.
    given_as: the option that names the folder."""
    file = folder / "metrics.json"
    if not file.exists():
        raise UserError(f"{given_as}{folder}: no metrics.json; give the --out folder of convrec evaluate")
    try:
        return json.loads(file.read_text(encoding="utf-8"), object_hook=_with_nan)
    except ValueError:
        raise UserError(f"{given_as}{file}: cut off; evaluate that model again") from None


def _with_nan(value: dict[str, Any]) -> dict[str, Any]:
    return {key: math.nan if one is None and key in ("mean", "se", "p") else one for key, one in value.items()}


def rows_of(folder: Path, given_as: str = "", key: str = "sample_id") -> dict[Any, dict[str, Any]]:
    """What a row has at `key` -> row of rows.parquet. Raises UserError when it is gone."""
    path = folder / "rows.parquet"
    if not path.exists():
        raise UserError(f"{given_as}{path}: gone since it was evaluated, or of baselines alone; evaluate again")
    return {row[key]: row for row in pq.read_table(path).to_pylist()}
