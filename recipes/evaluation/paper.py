"""The paper's figures beside a result: paper.csv, Reddit-v2 test split, lists of 20, protocol `paper`.

Source: arXiv 2510.20150 (Rank-GRPO, ICLR 2026), the tables of results on Reddit-v2. They compare with a result on that
whole test split only.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convrec.report.page import text_table

FIGURES = Path(__file__).with_name("paper.csv")
TEST_ROWS = 10_972
KS = (5, 10, 15, 20)


def paper_rows() -> list[dict[str, Any]]:
    """{"model", "recall@5", "ndcg@5", ...} of every row of the paper's tables, in their order."""
    with FIGURES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [f"{metric}@{k}" for metric in ("recall", "ndcg") for k in KS]
    return [{"model": _name(row), **{name: float(row[name]) for name in names}} for row in rows]


def _name(row: Mapping[str, str]) -> str:
    """A number of updates a batch that is not 1 is named, as off-policy runs are."""
    words = [row["backbone"] if row["backbone"] != "-" else "", row["method"]]
    return " ".join(filter(None, words)) + (", mu 2" if row["setting"] == "off-policy mu=2" else "")


def paper_table(metrics: Mapping[str, Any]) -> str:
    """What `--paper` prints: our models of the first protocol, then the paper's, at the asked ks that it has."""
    settings = metrics["settings"]
    results = metrics["results"][settings["protocols"][0]]
    ks = [k for k in settings["ks"] if k in KS]
    if not ks:
        return f"the paper has figures at {', '.join(map(str, KS))} only; give one of these with --ks"
    labels = {f"{metric}@{k}": f"{name}@{k}" for metric, name in (("recall", "Recall"), ("ndcg", "NDCG")) for k in ks}
    ours = [
        {"model": name} | {label: results[name][key]["mean"] for key, label in labels.items()}
        for name in sorted(results, key=lambda name: name == "model")
    ]
    theirs = [
        {"model": f"paper: {row['model']}"} | {label: row[key] for key, label in labels.items()} for row in paper_rows()
    ]
    lines = [f"beside the paper (Reddit-v2 test, arXiv 2510.20150), protocol {settings['protocols'][0]}:"]
    lines += [text_table([*ours, *theirs], line_a_model=True)]
    rows = results["model"]["n"] + results["model"]["without_ground_truth"]
    if rows != TEST_ROWS:
        lines.append(
            f"warning: {settings['data']} has {rows:,} rows scored, the paper's test split has {TEST_ROWS:,}: other "
            "data, whose figures do not compare"
        )
    return "\n".join(lines)
