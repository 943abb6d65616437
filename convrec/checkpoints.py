"""A model as users name it -> a Hugging Face folder or id.

A run folder of ours (or RUN/global_step_N) becomes Hugging Face form by itself: verl writes that form beside its shards
when `hf_model` is among the saved contents, else verl's own merger makes it once. LoRA, in a checkpoint of ours or as a
PEFT adapter's folder, is put into the weights of its base.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from convrec.checkpoint_files import check_hugging_face, check_shards, has_weights
from convrec.errors import UserError
from convrec.runs import LATEST, latest_step, start_model

ADAPTER = "adapter_config.json"


def check_model_path(model_path: str | Path, given_as: str = "MODEL_PATH=") -> str:
    """The path or Hugging Face id as text; given_as: the variable or option that errors name.

    Raises UserError for a folder that is missing or holds neither a model nor a run.
    """
    text = str(model_path)
    folder = Path(text).expanduser()
    if folder.is_dir():
        holds_model = any((folder / name).exists() for name in ("config.json", ADAPTER))
        if not holds_model and _step_folder(folder) is None:
            raise UserError(
                f"{given_as}{text}: the folder has neither a config.json (a Hugging Face model) nor a complete "
                f"checkpoint ({LATEST}); give a model folder, a run folder or a Hugging Face id"
            )
        return text
    is_hub_id = text.count("/") == 1 and not text.startswith((".", "/", "~")) and " " not in text
    if not is_hub_id or Path(text.split("/")[0]).is_dir():
        raise UserError(f"{given_as}{text}: no such folder, and not a Hugging Face id (organisation/name)")
    return text


def _step_folder(folder: Path) -> Path | None:
    """The checkpoint a path means: itself when it is RUN/global_step_N, the newest complete one of a run folder."""
    if folder.name.startswith("global_step_"):
        return folder
    step = latest_step(folder)
    return folder / f"global_step_{step}" if step else None


def resolve_model(model_path: str | Path, given_as: str = "MODEL_PATH=") -> str:
    """A Hugging Face folder or id for any of: id, Hugging Face folder, PEFT adapter, run folder, RUN/global_step_N.

    Raises UserError as `check_model_path` does, and when a checkpoint is half written or cannot be merged.
    """
    text = check_model_path(model_path, given_as)
    folder = Path(text).expanduser()
    if not folder.is_dir() or (folder / "config.json").exists():
        return text
    if (folder / ADAPTER).exists():
        return str(_merge_adapter(folder, folder / "merged", None))
    step_folder = _step_folder(folder)
    assert step_folder is not None  # check_model_path
    shards = step_folder / "actor" if (step_folder / "actor").is_dir() else step_folder
    saved, merged = shards / "huggingface", step_folder / "merged"
    # verl's Hugging Face form of a LoRA run has the adapter's names in it, which nothing loads
    is_lora = (shards / "lora_train_meta.json").exists()
    if has_weights(saved) and not is_lora:
        check_hugging_face(saved)
        return str(saved)
    if not has_weights(merged):
        check_shards(shards)
        _merge_shards(shards, merged, is_lora, step_folder.parent)
    return str(merged)


def _merge_shards(shards: Path, target: Path, is_lora: bool, run_folder: Path) -> None:
    partial = target.with_name(target.name + ".partial")
    command = ["verl.model_merger", "merge", "--backend", "fsdp"]
    _run([*command, "--local_dir", str(shards), "--target_dir", str(partial)], partial, shards)
    if is_lora:
        # the frozen base is the model the run started from, and unlike the merger's copy not rounded to bf16
        start = start_model(run_folder)
        use_start = start and (Path(start).is_dir() or not _is_whole(partial))
        _merge_adapter(partial / "lora_adapter", target, start if use_start else None)
        shutil.rmtree(partial)
    else:
        partial.rename(target)


def _is_whole(folder: Path) -> bool:
    """Whether the merger found the base's weights too; `save_lora_only` leaves them out."""
    index = next(folder.glob("*.index.json"), None)
    if index is not None:
        return bool(json.loads(index.read_text())["weight_map"])
    weights = max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size, default=None)
    adapter = folder / "lora_adapter" / "adapter_model.safetensors"
    return weights is not None and weights.stat().st_size > adapter.stat().st_size


def _merge_adapter(adapter: Path, target: Path, base: str | None) -> Path:
    """Base + adapter in `target`, made once. base None: the adapter's own, or the folder above a merged one."""
    if has_weights(target):
        return target
    if base is None:
        above = adapter.parent
        named = json.loads((adapter / ADAPTER).read_text()).get("base_model_name_or_path")
        base = str(above) if (above / "config.json").exists() and has_weights(above) else named
    if not base:
        raise UserError(f"{adapter}: {ADAPTER} names no base_model_name_or_path: write the base model's folder there")
    partial = target.with_name(target.name + ".adding")
    _run(["convrec.lora", resolve_model(base), str(adapter), str(partial)], partial, adapter)
    partial.rename(target)
    return target


def _run(command: list[str], partial: Path, what: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    root = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode or not has_weights(partial):
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise UserError(f"{what}: this checkpoint cannot be merged ({last[0]}); name another step of the run")
