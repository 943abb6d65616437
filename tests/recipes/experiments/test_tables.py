"""The table's numbers."""

from typing import Any

from recipes.experiments.matrix_file import Run
from recipes.experiments.tables import markdown, row_of


def test_the_table_is_of_means_over_seeds_and_gains_over_the_start() -> None:
    def metrics(value: float, gain: float | None) -> dict[str, Any]:
        names = ("recall@5", "ndcg@5")
        model = {name: {"mean": value, "se": 0.01} for name in names}
        model |= {"catalog_hit_ratio": 1.0, "repeats_per_list": 0.0, "distinct_items": 3}
        found: dict[str, Any] = {
            "settings": {"protocols": ["paper"], "ks": [5]},
            "results": {"paper": {"model": model}},
        }
        if gain is not None:
            found["paired"] = {name: {"mean": gain, "se": 0.02, "p": 0.5} for name in names}
        return found

    def run(name: str, variant: str) -> Run:
        return Run(name, variant, "rank_grpo", None, {"SEED": "1"})

    table = [
        row_of(run("sft", "sft"), metrics(0.1, None)),
        row_of(run("a-s1", "a"), metrics(0.2, 0.1)),
        row_of(run("a-s2", "a"), metrics(0.3, 0.2)),
    ]
    # a: mean (0.2 + 0.3) / 2, sd sqrt(2 * 0.05^2 / 1) = 0.0707, gain (0.1 + 0.2) / 2
    assert markdown(table, 5).splitlines()[2:] == [
        "| sft | 1 | 0.1000 |  | 0.1000 |  |",
        "| a | 2 | 0.2500 (sd 0.0707) | +0.1500 (se of each 0.0200/0.0200) | "
        "0.2500 (sd 0.0707) | +0.1500 (se of each 0.0200/0.0200) |",
    ]
