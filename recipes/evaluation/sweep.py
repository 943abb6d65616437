"""All checkpoints of a run evaluated on one split: how recommendation, not only the loss, changed over training.

OUT/step_000040/ is the evaluation of a step (see recipes.evaluate), OUT/sweep.csv has a row a step. Interrupted, it
goes on where it was: each step reuses its generations. Step 0, the model the run started from, and the newest
checkpoint are never left out.
"""

import os
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from convrec.curves import SWEEP, write_csv
from convrec.errors import UserError
from convrec.report import table_row, text_table
from convrec.runs import LATEST, latest_step, saved_steps, start_model
from recipes.evaluation.single import evaluate


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
    """Evaluate every step, write OUT/sweep.csv and return the table to print (the largest k); `options` are evaluate's.

    The baselines and a warning that all steps have are said once.
    """
    steps = sweep_steps(run, start)
    folder = Path(out) if out else run / "evaluation" / Path(options["data"]).stem
    found: dict[int, dict[str, Any]] = {}
    shown: list[dict[str, Any]] = []
    largest = [max(options["ks"])]
    warned: set[str] = set()
    for step, model in steps.items():
        metrics = evaluate(model=model, out=folder / f"step_{step:06d}", **options)
        protocol = metrics["settings"]["protocols"][0]
        results = dict(metrics["results"][protocol])
        of_model = results.pop("model")
        found[step] = _row(of_model, options["ks"])
        if not shown:
            shown += [table_row(name, baseline, largest) for name, baseline in results.items()]
        shown.append(table_row(f"step {step}", of_model, largest))
        for warning in metrics["warnings"]:
            if warning not in warned:
                tqdm.write(f"warning: {warning}", file=sys.stderr)
        warned |= {*metrics["warnings"]}
    write_csv(folder / SWEEP, [{"step": step, **row} for step, row in found.items()])
    return (
        f"{run} on {options['data']}, {of_model['n']} rows, protocol {protocol}\n"
        f"{text_table(shown, line_a_model=True)}\nwritten to {folder} (all k: {SWEEP})"
    )


def _row(summary: dict[str, Any], ks: list[int]) -> dict[str, Any]:
    row: dict[str, Any] = {}
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
