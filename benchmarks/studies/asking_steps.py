"""A step of a run that asks against one of a run that does not: seconds, tokens, and the ratio of seconds over tokens.

    python -m benchmarks.studies.asking_steps outputs/asking/never-s3407 outputs/asking/ask-ASK_COST=0.1-s3407

Of the steps after the first ones, in which engines warm up, and without those that validate or save. Above 1 a token of
the asking run takes longer: its turns come one after the other.
"""

import sys
from pathlib import Path
from statistics import median

from convrec.runs.folder import read_metrics

WARM_UP = 3  # steps
SECONDS, TOKENS, GENERATION = "timing_s/step", "perf/total_num_tokens", "timing_s/gen"


def measure_step(run: Path) -> dict[str, float]:
    """Medians of a step's seconds, tokens and seconds of generation. Raises ValueError where no step is left."""
    rows = [row for row in read_metrics(run) if row["step"] > WARM_UP and SECONDS in row and TOKENS in row]
    rows = [row for row in rows if not {"timing_s/testing", "timing_s/save_checkpoint"} & row.keys()]
    if not rows:
        raise ValueError(f"{run}: no step behind the first {WARM_UP} that neither validates nor saves")
    return {name: median(row[name] for row in rows) for name in (SECONDS, TOKENS, GENERATION) if name in rows[0]}


def main(arguments: list[str]) -> None:
    without, asking = (measure_step(Path(run)) for run in arguments)
    ratios = {name: asking[name] / without[name] for name in without}
    for name, ratio in ratios.items():
        print(f"{name}: {without[name]:.6g} without, {asking[name]:.6g} asking, ratio {ratio:.3f}")
    print(f"seconds over tokens: {ratios[SECONDS] / ratios[TOKENS]:.3f}; at most 1.5 is the goal")


if __name__ == "__main__":
    main(sys.argv[1:])
