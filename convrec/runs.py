"""A run's folder: where checkpoints, metrics and the log are.

RUN/global_step_N/      checkpoints (verl's layout), the newest complete one named in latest_checkpointed_iteration.txt
RUN/metrics/0001.jsonl  one file a start of the run: {"step": N, "data": {name: value}} a line
RUN/samples/0001.jsonl  the same of a few validation answers (RL): {"step", "input", "output", "score"} a line
RUN/config.yaml         the composed settings
RUN/run.log             everything verl, Ray and vLLM print
"""

import json
import re
from pathlib import Path
from typing import Any

METRICS = "metrics"
LATEST = "latest_checkpointed_iteration.txt"
MODEL_KEYS = {"sft": "model.path"} | dict.fromkeys(
    ("rank_grpo", "judge_pointwise", "judge_pairwise"), "actor_rollout_ref.model.path"
)
_MODEL_FILES = ("model_world_size_*.pt", "*.safetensors", "pytorch_model*.bin")
_STEP = re.compile(r"global_step_(\d+)")


def next_metrics_file(run_folder: Path) -> Path:
    """A new file for this start of the run: a resumed run never overwrites what it repeats."""
    folder = run_folder / METRICS
    folder.mkdir(parents=True, exist_ok=True)
    number = max((int(path.stem) for path in folder.glob("[0-9]*.jsonl")), default=0) + 1
    return folder / f"{number:04d}.jsonl"


def read_metrics(run_folder: Path) -> list[dict[str, Any]]:
    """One dict a step in order, with key "step". Steps that a resumed run repeated have the later start's values.

    A step can have several lines: training, validation, and the validation a resumed run begins with.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for path in sorted((run_folder / METRICS).glob("[0-9]*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # the last line of a run that was killed while writing
                continue
            by_step.setdefault(int(entry["step"]), {}).update(entry["data"])
    return [{"step": step, **by_step[step]} for step in sorted(by_step)]


def is_logged(run_folder: Path, step: int) -> bool:
    """Whether metrics of the step were written: a run that is killed after it saved loses those of its last step."""
    return any(row["step"] == step for row in read_metrics(run_folder))


def latest_step(run_folder: Path) -> int:
    """The newest complete checkpoint's step, 0 when there is none."""
    try:
        return int((run_folder / LATEST).read_text())
    except (FileNotFoundError, ValueError):  # ValueError: cut off by a full disk
        return 0


def saved_steps(run_folder: Path) -> list[int]:
    """Steps that have a model in the run folder, in order. Left out: folders newer than the newest complete checkpoint
    (a run was killed while saving) and folders whose model was removed to keep only newer ones."""
    newest = latest_step(run_folder)
    steps = []
    for folder in run_folder.glob("global_step_*"):
        found = _STEP.fullmatch(folder.name)
        holds_model = any(next(folder.rglob(pattern), None) for pattern in _MODEL_FILES)
        if found and int(found[1]) <= newest and holds_model:
            steps.append(int(found[1]))
    return sorted(steps)


def read_config(run_folder: Path) -> dict[str, Any]:
    """RUN/config.yaml as plain data, references unresolved; {} when the run has none."""
    import yaml

    path = run_folder / "config.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {} if path.exists() else {}


def setting(config: dict[str, Any], key: str) -> Any:
    """config["a"]["b"] for "a.b"; None where any part is missing."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def recipe_of(config: dict[str, Any]) -> str:
    """Which recipe wrote this config: a key of MODEL_KEYS. Judges are known by their reward function."""
    if "actor_rollout_ref" not in config:
        return "sft"
    reward = str(setting(config, "reward.custom_reward_function.path")).rpartition(".")[2]
    return reward if reward in MODEL_KEYS else "rank_grpo"


def start_model(run_folder: Path) -> str | None:
    """The model that the run started from, step 0 of its curves; None when the run has no config.yaml."""
    config = read_config(run_folder)
    return setting(config, MODEL_KEYS[recipe_of(config)])
