"""Draw docs/images/demo.svg from the summary of `make demo`.

python scripts/demo_picture.py outputs/demo/summary.json
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "demo"  # makes the file reproducible
from matplotlib import pyplot  # noqa: E402  the backend must be set first

METRICS = {"recall@5": "Recall@5", "recall@20": "Recall@20", "ndcg@5": "NDCG@5", "ndcg@20": "NDCG@20"}
MODELS = {
    "popularity": ("popularity", "#9aa0a6"),
    "retrieval": ("retrieval", "#5f6368"),
    "sft": ("SFT", "#5b8ff9"),
    "rank_grpo": ("Rank-GRPO", "#d9480f"),
    "fused": ("Rank-GRPO and retrieval", "#2b8a3e"),
}
WIDTH = 0.16


def main(summary_file: str) -> None:
    """Draw the picture from a summary.json."""
    models = json.loads(Path(summary_file).read_text())["models"]
    figure, axis = pyplot.subplots(figsize=(7.2, 2.9))
    for place, (model, (label, colour)) in enumerate(MODELS.items()):
        means, errors = ([models[model][metric][of] for metric in METRICS] for of in ("mean", "se"))
        positions = [x + (place - len(MODELS) // 2) * WIDTH for x in range(len(METRICS))]
        axis.bar(positions, means, WIDTH - 0.01, yerr=errors, capsize=2, label=label, color=colour)
    axis.set_xticks(range(len(METRICS)), list(METRICS.values()))
    axis.set_ylim(0, 0.9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title("make demo, test split; bars: one standard error", fontsize=10)
    axis.legend(frameon=False, ncols=5, fontsize=8)
    figure.tight_layout()
    figure.savefig(Path(__file__).parents[1] / "docs" / "images" / "demo.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
