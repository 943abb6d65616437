"""The table of a study of asking (notes/asking.md), of what is evaluated so far.

    python -m benchmarks.studies.asking_table outputs/asking

A line each of the baselines, starts, arms and controls: means over the seeds, and minus the never-asking run of the
same seed, paired by conversation: the mean, its error over conversations, the standard deviation of the seeds' means.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

from benchmarks.studies.ranks.comparisons import NDCG, RECALL, difference
from convrec.base.files import read_json

SUCCESSES, AFTER = [f"success_by_{turn}" for turn in (1, 2, 3)], [f"ndcg_after_{count}" for count in (0, 1, 2)]
SHOWN = (NDCG, RECALL, "questions", "useful", "malformed", *SUCCESSES, *AFTER)
NAME = re.compile(r"(?P<variant>.+)-s(?P<seed>\d+)(?P<control>-\w+)?")
AGAINST = "never"


def figures(files: list[Path], lists: str = "model") -> list[str]:
    """Of SHOWN the mean over evaluations that have it, "" where none has."""
    found = [read_json(file)["results"]["paper"][lists] for file in files]
    of_each = ([one[name]["mean"] for one in found if name in one] for name in SHOWN)
    known = [[value for value in values if value is not None] for values in of_each]
    return [f"{mean(values):.3f}" if values else "" for values in known]


def table(out: Path) -> str:
    by_variant: dict[str, dict[str, Path]] = defaultdict(dict)  # seed -> folder of an evaluation
    for file in sorted(out.glob("evaluation/*/metrics.json")) + sorted(out.glob("controls/*/metrics.json")):
        if name := NAME.fullmatch(file.parent.name):
            by_variant[name["variant"] + (name["control"] or "")][name["seed"]] = file.parent
    lines = [f"| | seeds | {' | '.join(SHOWN)} | minus {AGAINST}, {NDCG} | {RECALL} |", "|---" * (len(SHOWN) + 4) + "|"]
    some = next(iter(by_variant[AGAINST].values())) / "metrics.json"
    for rule in ("never", "fixed", "entropy"):
        lines.append(f"| rule: {rule} | | {' | '.join(figures([some], rule))} | | |")
    for variant, folders in by_variant.items():
        pairs = [(folder, by_variant[AGAINST][seed]) for seed, folder in folders.items() if seed in by_variant[AGAINST]]
        found = difference(pairs) if pairs and variant != AGAINST else {}
        minus = ["{:+.4f} ({:.4f}; {:.4f})".format(*found[name]) if found else "" for name in (NDCG, RECALL)]
        of_seeds = figures([folder / "metrics.json" for folder in folders.values()])
        lines.append(f"| {variant} | {len(folders)} | {' | '.join(of_seeds + minus)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
