"""Metrics of an evaluation, as far as the tables read them."""

from typing import Any

NAMES = ("recall@5", "ndcg@5")


def make_metrics(value: float, gain: float | None = None, se: float | None = 0.01, **settings: Any) -> dict[str, Any]:
    """Make the contents of a metrics.json.

    se: standard error of the model's figures, and half that of its gains; None is JSON's form of NaN.
    """
    model: dict[str, Any] = {name: {"mean": value, "se": se} for name in NAMES}
    model |= {"catalog_hit_ratio": 1.0, "repeats_per_list": 0.0, "distinct_items": 3}
    model |= {"items_per_list": 5.0, "list_length_errors": 0, "n": 2}
    metrics = {"settings": {"protocols": ["paper"], "ks": [5]} | settings, "results": {"paper": {"model": model}}}
    if gain is not None:
        metrics["paired"] = {name: {"mean": gain, "se": se and 2 * se, "p": se and 0.5} for name in NAMES}
    return metrics
