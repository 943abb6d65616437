"""RUN/global_step_N/metrics.json: the metrics of step N as far as they are known when its checkpoint is written.

verl logs a step after its checkpoint, the update of the rollout's weights and its validation. A run that ends in
between resumes after the step. So the next start logs what this file has, and validates first where that step was due
for it.
What only the end of a step tells, how long it took (`timing_s/`, `perf/`), is not in the file.

SFT logs a step, and its validation, before its checkpoint: it writes no such file.
"""

import json
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from convrec.errors import UserError
from convrec.files import read_json, write_json
from convrec.runs.folder import read_metrics

FILE = "metrics.json"
KNOWN_AT_THE_END = ("timing_s/", "timing_per_token_ms/", "perf/")
LOGGED_WHOLE = "timing_s/step"  # verl itself has logged the step, with its validation if it had one


def write(checkpoint: Path, metrics: Mapping[str, Any]) -> None:
    """Into RUN/global_step_N: the numbers, as verl's file logger writes them."""
    import orjson  # verl's: elsewhere a run can be read without it

    numbers = {
        name: value
        for name, value in metrics.items()
        if isinstance(value, Real) and not name.startswith(KNOWN_AT_THE_END)
    }
    written = json.loads(orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY))
    # NaN and infinity became null, which no tracker takes
    write_json(checkpoint / FILE, {name: value for name, value in written.items() if value is not None})


def read(run_folder: Path, step: int) -> dict[str, float]:
    """{} where there is none, as in checkpoints of SFT and of earlier versions."""
    try:
        return read_json(run_folder / f"global_step_{step}" / FILE)
    except (FileNotFoundError, UserError):
        return {}


def unlogged(run_folder: Path, step: int) -> dict[str, float]:
    """What was known of a saved step and no start has logged. Another value was logged where a run went back before the
    step, trained it anew and ended."""
    logged = _logged(run_folder, step)
    return {name: value for name, value in read(run_folder, step).items() if logged.get(name) != value}


def lacks_validation(run_folder: Path, step: int, test_freq: int, last_step: int | None) -> bool:
    """Whether the run ended between the checkpoint of the step and a validation it was due for."""
    if not read(run_folder, step) or test_freq <= 0 or (step % test_freq and step != last_step):
        return False
    logged = _logged(run_folder, step)
    has_validation = LOGGED_WHOLE in logged or any(name.startswith("val/") for name in logged)
    return bool(unlogged(run_folder, step)) or not has_validation


def _logged(run_folder: Path, step: int) -> dict[str, Any]:
    return next((row for row in read_metrics(run_folder) if row["step"] == step), {})
