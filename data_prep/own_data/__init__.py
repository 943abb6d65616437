"""A user's own conversations and catalog: files, rows, catalog, splits."""

from typing import Any

from convrec.base.shipped import read_table

NAMES: dict[str, Any] = read_table(__file__, "names.yaml")
