"""The places of conf/ and reward/ in a checkout and in an installed wheel. tests/e2e/test_wheel.py installs one."""

import os
import runpy
import shutil
from pathlib import Path

import pytest

from convrec.base import shipped

ROOT = Path(__file__).resolve().parents[3]


def test_a_checkout_has_its_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not shipped.INSTALLED
    assert (shipped.CONF, shipped.REWARD) == (ROOT / "conf", "reward")
    assert shipped.RUNTIME_ENV.is_file()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/elsewhere", ""]))
    path = shipped.python_path()
    assert path == os.pathsep.join([str(ROOT), "/elsewhere"])
    monkeypatch.setenv("PYTHONPATH", path)
    assert shipped.python_path() == path


def test_wheel_ships_conf_in_package_and_leaves_path_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With site-packages before the standard library, other packages could shadow its modules."""
    package = tmp_path / "convrec"
    (package / "_conf").mkdir(parents=True)
    (package / "base").mkdir()
    shutil.copy(shipped.__file__, package / "base")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    module = runpy.run_path(str(package / "base" / "shipped.py"))
    assert module["INSTALLED"]
    assert (module["CONF"], module["REWARD"]) == (package / "_conf", "convrec._reward")
    assert module["RUNTIME_ENV"] == package / "_conf" / "runtime_env.yaml"
    assert module["python_path"]() == "/elsewhere"
