"""Where conf/ and reward/ are: beside the package in a checkout; in it, as _conf and _reward, where a wheel put it.

A wheel's `conf` and `reward` would be anybody's names in site-packages (setup.py moves them).
"""

import os
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent  # the checkout, or site-packages
INSTALLED = (PACKAGE / "_conf").is_dir()
CONF = PACKAGE / "_conf" if INSTALLED else ROOT / "conf"
REWARD = "convrec._reward" if INSTALLED else "reward"  # to import
RUNTIME_ENV = (CONF if INSTALLED else ROOT) / "runtime_env.yaml"


def python_path() -> str:
    """PYTHONPATH for processes that import this project: site-packages they have by themselves."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.pathsep.join(paths if INSTALLED or str(ROOT) in paths else [str(ROOT), *paths])


def read_table(module_file: str, name: str) -> Any:
    """A YAML file beside a module, which gives its `__file__`."""
    import yaml

    return yaml.load(Path(module_file).with_name(name).read_text(encoding="utf-8"), yaml.CSafeLoader)
