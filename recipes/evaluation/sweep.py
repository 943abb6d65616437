"""All checkpoints of a run evaluated on one split: how recommendation, not only the loss, changed over training.

OUT/step_000040/ is the evaluation of a step (see recipes.evaluate), OUT/sweep.csv has a row a step. Interrupted, it
goes on where it was: each step reuses its generations. Step 0, the model the run started from, and the newest
checkpoint are never left out.
"""

import os
from pathlib import Path
from typing import Any

from convrec.curves import SWEEP, write_csv
from convrec.errors import UserError
from convrec.report import text_table
from convrec.runs import LATEST, latest_step, saved_steps, start_model


def sweep_steps(run: Path, start: str | None = None) -> dict[int, str]:
    """step -> model, in order: 0 is the start model, the others RUN/global_step_N.

    Raises UserError when the folder is no run, its newest checkpoint has no model, or the start model is gone.
    """
    if not (run / LATEST).exists():
        raise UserError(f"--sweep {run}: no {LATEST}; give a run folder with a complete checkpoint")
    begin = start or start_model(run)
    if not begin:
        raise UserError(f"{run}: no config.yaml that names the model it started from; give it with --start")
    if not start and os.path.isabs(begin) and not Path(begin).exists():
        raise UserError(
            f"{run}/config.yaml: the run started from {begin}, which is gone; give its new place with --start"
        )
    steps = saved_steps(run)
    if latest_step(run) not in steps:
        raise UserError(
            f"{run}/global_step_{latest_step(run)}: named in {LATEST}, but it holds no model: half written or removed"
        )
    return {0: begin, **{step: str(run / f"global_step_{step}") for step in steps}}


def sweep_run(run: Path, out: str | Path | None = None, start: str | None = None, **options: Any) -> str:
    """Evaluate every step, write OUT/sweep.csv and return the table to print; `options` are evaluate's."""
    from recipes.evaluate import evaluate

    steps = sweep_steps(run, start)
    folder = Path(out) if out else run / "evaluation" / Path(options["data"]).stem
    table = []
    for step, model in steps.items():
        metrics = evaluate(model=model, out=folder / f"step_{step:06d}", **options)
        protocol, results = next(iter(metrics["results"].items()))
        table.append(_row(step, results["model"], options["ks"]))
        popularity = results.get("popularity")
    write_csv(folder / SWEEP, table)
    shown = [{"model": f"step {row['step']}", **{k: v for k, v in row.items() if k != "step"}} for row in table]
    if popularity:
        shown.insert(0, {"model": "popularity", **_row(0, popularity, options["ks"])} | {"step": None})
        del shown[0]["step"]
    return f"{run} on {options['data']}, protocol {protocol}\n{text_table(shown)}\nwritten to {folder}"


def _row(step: int, summary: dict[str, Any], ks: list[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"step": step}
    for name in (f"{metric}@{k}" for metric in ("ndcg", "recall") for k in ks):
        row |= {name: summary[name]["mean"], f"{name} se": summary[name]["se"]}
    return row | {
        "in catalog": summary["catalog_hit_ratio"],
        "items per list": summary["items_per_list"],
        "list length errors": summary["list_length_errors"],
        "distinct items": summary["distinct_items"],
        "repeats per list": summary["repeats_per_list"],
        "n": summary["n"],
    }
