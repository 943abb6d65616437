"""A user's own conversations and catalog: files, rows, catalog, splits."""

from pathlib import Path
from typing import Any

import yaml

NAMES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("names.yaml").read_text("utf-8"))
