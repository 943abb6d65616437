"""Gains over the model that a run started from, or the first one, from the rows of each evaluation."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes import evaluate, report
from recipes.report import make_fused_gain_tables, make_gain_tables
from tests.conftest import mark_complete
from tests.recipes.evaluation.small import row, write_catalog
from tests.recipes.evaluation.small import write_rows as write_split
from tests.user_errors import refuses


def write_rows(folder: Path, ndcg: list[float]) -> Path:
    """Three rows: the first two of one conversation. And one without ground truth."""
    folder.mkdir()
    rows = [
        {"sample_id": sample, "prompt_id": prompt, "num_truth": 1}
        | {"ndcg@5": value, "recall@5": 0.5, "ndcg@20": value, "recall@20": 0.5}
        for sample, prompt, value in zip("abc", "ppq", ndcg, strict=True)
    ]
    rows.append({"sample_id": "d", "prompt_id": "r", "num_truth": 0})
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return folder


def test_the_gain_is_row_by_row_over_the_reference(tmp_path: Path) -> None:
    evaluations = {"SFT": write_rows(tmp_path / "a", [0.1, 0.2, 0.3])}
    assert make_gain_tables(evaluations, {}, [5, 20], 0) == {}
    evaluations["Rank-GRPO"] = write_rows(tmp_path / "b", [0.3, 0.2, 0.4])
    table = make_gain_tables(evaluations, {"Rank-GRPO": "SFT"}, [5, 20], 0)["Rank-GRPO"]
    assert table.title == "Rank-GRPO minus SFT"
    assert list(table.gains) == ["NDCG@20", "NDCG@5", "Recall@20", "Recall@5"]
    gain = table.gains["NDCG@20"]
    assert gain["mean"] == pytest.approx(0.1)
    # two conversations: 0.2 and 0.0 (mean 0.1), and 0.1. Each resample of the two has the mean 0.1
    assert gain["se"] == pytest.approx(0)
    # two conversations with sums 0.2 and 0.1: two of the four assignments of signs are as far from 0
    assert gain["p"] == pytest.approx(0.5, abs=0.03)
    assert (table.gains["Recall@5"]["mean"], table.gains["Recall@5"]["p"]) == (0.0, 1.0)
    assert table.caption.startswith("3 rows, 2 conversations.")


def test_each_model_has_a_table_over_its_own_reference(tmp_path: Path) -> None:
    values = {"Zero-shot": [0.0, 0.0, 0.1], "SFT": [0.1, 0.2, 0.3], "GRPO": [0.1, 0.2, 0.6], "Rank-GRPO": [0.4] * 3}
    evaluations = {name: write_rows(tmp_path / name, ndcg) for name, ndcg in values.items()}
    references = {"SFT": "Zero-shot", "GRPO": "Zero-shot", "Rank-GRPO": "SFT"}
    tables = make_gain_tables(evaluations, references, [5, 20], 0)
    assert [(name, table.title) for name, table in tables.items()] == [
        ("SFT", "SFT minus Zero-shot"),
        ("GRPO", "GRPO minus Zero-shot"),
        ("Rank-GRPO", "Rank-GRPO minus SFT"),
    ]
    gains = [table.gains["NDCG@20"] for table in tables.values()]
    assert [gain["mean"] for gain in gains] == pytest.approx([0.5 / 3, 0.8 / 3, 0.2])
    # A resample draws p twice (1/4), q twice (1/4), or both (1/2): the mean of p's rows, of q's, of all
    by_draw = {"SFT": (0.15, 0.2, 0.5 / 3), "GRPO": (0.15, 0.5, 0.8 / 3), "Rank-GRPO": (0.25, 0.1, 0.2)}
    for gain, (of_p, of_q, of_all) in zip(gains, by_draw.values(), strict=True):
        mean = (of_p + of_q + 2 * of_all) / 4
        variance = ((of_p - mean) ** 2 + (of_q - mean) ** 2 + 2 * (of_all - mean) ** 2) / 4
        assert gain["se"] == pytest.approx(math.sqrt(variance), rel=0.05)  # of 1,000 resamples
    (tmp_path / "GRPO" / "rows.parquet").unlink()
    with refuses("evaluation.missing-rows", tmp_path / "GRPO" / "rows.parquet"):
        make_gain_tables(evaluations, references, [5, 20], 0)


def test_fused_lists_are_compared_with_those_of_the_retrieval() -> None:
    pair = {name: {"mean": 0.1, "se": 0.02, "p": 0.01} for name in ("ndcg@5", "recall@5", "coverage")} | {"n": 9}
    metrics = {
        "settings": {"protocols": ["strict"]},
        "results": {"strict": {"fused": {"num_contexts": 7}}},
        "fused": {"paired": pair},
    }
    tables = make_fused_gain_tables({"SFT": {}, "Rank-GRPO": metrics}, [5])
    table = tables.pop("Rank-GRPO, fused")
    assert tables == {}
    assert table.title == "Rank-GRPO, fused minus retrieval"
    assert table.gains == {"NDCG@5": pair["ndcg@5"], "Recall@5": pair["recall@5"]}
    assert table.caption.startswith("9 rows, 7 conversations.")


# ---- the whole report

# hit, miss: a list whose first line is relevant for every conversation, and for none
LISTS = {"zero_shot": {"a": 0, "b": 0, "c": 0, "d": 0}, "sft": {"a": 1, "b": 1, "c": 0, "d": 0}}
LISTS |= {"rl": {"a": 1, "b": 0, "c": 1, "d": 1}}


@pytest.fixture
def evaluations(tmp_path: Path, sound_model: Callable[..., Path], answer_with: Callable[..., Any]) -> dict[str, Path]:
    """Evaluate a model, an SFT run that started from it, and an RL run that started from that one."""

    def answer(conversation: str, model: str, **_: Any) -> str:
        name = next(name for name in LISTS if name in Path(model).parts)
        return "Heat (1995)" if LISTS[name][conversation] else "Jaws (1975)"

    answer_with(answer)
    start = sound_model(tmp_path / "zero_shot", weight=0.0)
    models = {"zero_shot": start}
    for weight, (name, key) in enumerate({"sft": "model", "rl": "actor_rollout_ref.model"}.items(), 1):
        saved = sound_model(tmp_path / name / "global_step_2" / "actor" / "huggingface", weight=float(weight))
        mark_complete(tmp_path / name, 2)
        config = f"{{path: {start}}}"
        for part in reversed(key.split(".")):
            config = f"{{{part}: {config}}}"
        (tmp_path / name / "config.yaml").write_text(config)
        models[name] = tmp_path / name
        start = saved
    data = write_split(tmp_path / "test.parquet", [row(name, name, ["Heat"]) for name in "abcd"])
    catalog = write_catalog(tmp_path / "catalog.parquet")
    for name, model in models.items():
        arguments = ["--model", str(model), "--out", str(tmp_path / "evaluation" / name), "--num-items", "1"]
        assert evaluate.main([*arguments, "--ks", "1", "--data", data, "--catalog", catalog]) == 0
    return {name: tmp_path / "evaluation" / name for name in models}


def write_report(out: Path, evaluations: dict[str, Path]) -> str:
    return report.report([], out, evaluations).read_text(encoding="utf-8")


def test_the_report_has_the_gain_of_each_training(evaluations: dict[str, Path], tmp_path: Path) -> None:
    html = write_report(tmp_path / "report.html", evaluations)
    assert re.findall(r"<figure><h3>(.*?)</h3>", html) == ["sft minus zero_shot", "rl minus sft"]
    cells = re.findall(r"<th scope=\"row\">NDCG@1</th><td>([+-]\S+) <span class=\"se\">±&#8239;(\S+?)</span>", html)
    assert [float(mean) for mean, _ in cells] == [0.5, 0.25]
    # sft minus zero_shot: 1, 1, 0, 0; variance 1/4. rl minus sft: 0, -1, 1, 1; variance 3/4 - 1/16. Both over 4 rows
    assert [float(error) for _, error in cells] == pytest.approx([0.25, math.sqrt(11) / 8], rel=0.05)
    assert '<p class="headline">rl minus sft, test.parquet: NDCG@1 +0.2500 ±' in html
    assert html.count("4 rows, 4 conversations. Standard errors") == 1  # one caption for all tables
    # the examples are those of rl over sft: c and d are gains, b is a loss
    assert "the largest gain of rl over sft (NDCG@1 +1.00)" in html
    assert "the largest loss of rl over sft (NDCG@1 -1.00)" in html


def test_the_headline_is_the_gain_of_the_last_training(evaluations: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    zero_shot, sft, rl = evaluations.values()
    html = write_report(out, {"rl": rl, "sft": sft, "zero_shot": zero_shot})
    assert re.findall(r"<figure><h3>(.*?)</h3>", html) == ["rl minus sft", "sft minus zero_shot"]
    assert '<p class="headline">rl minus sft, test.parquet: NDCG@1 +0.2500 ±' in html
    html = write_report(out, {"zero_shot": zero_shot, "rl": rl})  # without its initial model: minus the first
    assert '<p class="headline">rl minus zero_shot, test.parquet: NDCG@1 +0.7500 ±' in html
    html = write_report(out, {"sft": sft, "rl": rl, "again": rl})  # no one model is the last
    assert re.findall(r"<figure><h3>(.*?)</h3>", html) == ["rl minus sft", "again minus sft"]
    assert 'class="headline"' not in html
