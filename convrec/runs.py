"""A run's folder: where checkpoints, metrics and the log are.

RUN/global_step_N/      checkpoints (verl's layout), the newest complete one named in latest_checkpointed_iteration.txt
RUN/metrics/0001.jsonl  one file a start of the run: {"step": N, "data": {name: value}} a line
RUN/config.yaml         the composed settings
RUN/run.log             everything verl, Ray and vLLM print
"""

import json
from pathlib import Path
from typing import Any

METRICS = "metrics"
LATEST = "latest_checkpointed_iteration.txt"


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


def latest_step(run_folder: Path) -> int:
    """The newest complete checkpoint's step, 0 when there is none."""
    try:
        return int((run_folder / LATEST).read_text())
    except (FileNotFoundError, ValueError):  # ValueError: cut off by a full disk
        return 0
