"""Reading your own data: files of conversations, catalogs, ratings, rows and splits."""

from typing import Any

from convrec.base.shipped import read_table

NAMES: dict[str, Any] = read_table(__file__, "names.yaml")
