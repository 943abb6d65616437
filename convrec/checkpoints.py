"""A model as users name it -> a Hugging Face folder or id.

A run folder of ours (or RUN/global_step_N) becomes Hugging Face form by itself: verl writes that form beside its shards
when `hf_model` is among the saved contents, else verl's own merger makes it once.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from convrec.errors import UserError
from convrec.runs import LATEST, latest_step

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def check_model_path(model_path: str | Path) -> str:
    """The path or Hugging Face id as text.

    Raises UserError for a folder that is missing or holds neither a model nor a run.
    """
    text = str(model_path)
    folder = Path(text).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").exists() and _step_folder(folder) is None:
            raise UserError(
                f"MODEL_PATH={text}: the folder has neither a config.json (a Hugging Face model) nor a complete "
                f"checkpoint ({LATEST}); give a model folder, a run folder or a Hugging Face id"
            )
        return text
    is_hub_id = text.count("/") == 1 and not text.startswith((".", "/", "~")) and " " not in text
    if not is_hub_id or Path(text.split("/")[0]).is_dir():
        raise UserError(f"MODEL_PATH={text}: no such folder, and not a Hugging Face id (organisation/name)")
    return text


def _step_folder(folder: Path) -> Path | None:
    """The checkpoint a path means: itself when it is RUN/global_step_N, the newest complete one of a run folder."""
    if folder.name.startswith("global_step_"):
        return folder
    step = latest_step(folder)
    return folder / f"global_step_{step}" if step else None


def resolve_model(model_path: str | Path) -> str:
    """A Hugging Face folder or id for any of: id, Hugging Face folder, run folder, RUN/global_step_N.

    Raises UserError as `check_model_path` does, and when a checkpoint cannot be merged.
    """
    text = check_model_path(model_path)
    folder = Path(text).expanduser()
    if not folder.is_dir() or (folder / "config.json").exists():
        return text
    step_folder = _step_folder(folder)
    assert step_folder is not None  # check_model_path
    shards = step_folder / "actor" if (step_folder / "actor").is_dir() else step_folder
    saved = shards / "huggingface"
    if _has_weights(saved):
        return str(saved)
    merged = step_folder / "merged"
    if not _has_weights(merged):
        _merge(shards, merged)
    return str(merged)


def _has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in _WEIGHTS) if folder.is_dir() else False


def _merge(shards: Path, target: Path) -> None:
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    command += ["--local_dir", str(shards), "--target_dir", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ}, check=False)
    if done.returncode or not _has_weights(partial):
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise UserError(
            f"{shards}: verl's merger cannot read this checkpoint ({last[0]}); name another step of the run"
        )
    partial.rename(target)
