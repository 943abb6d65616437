"""Locate conf/ and reward/: next to the package in a checkout, inside it as _conf and _reward in a wheel.

In site-packages, `conf` and `reward` could clash with other packages, so setup.py moves them.
"""

import os
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent  # the checkout, or site-packages
INSTALLED = (PACKAGE / "_conf").is_dir()
CONF = PACKAGE / "_conf" if INSTALLED else ROOT / "conf"
REWARD = "convrec._reward" if INSTALLED else "reward"  # name to import
RUNTIME_ENV = (CONF if INSTALLED else ROOT) / "runtime_env.yaml"


def python_path() -> str:
    """Return the PYTHONPATH for processes that import this project; site-packages need no entry."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.pathsep.join(paths if INSTALLED or str(ROOT) in paths else [str(ROOT), *paths])


def read_table(module_file: str, name: str) -> Any:
    """Read a YAML file that is next to a module.

    Args:
        module_file: the module's `__file__`.
        name: of the YAML file.
    """
    import yaml

    return yaml.load(Path(module_file).with_name(name).read_text(encoding="utf-8"), yaml.CSafeLoader)
