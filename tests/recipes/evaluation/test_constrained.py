"""What is refused before vLLM starts, what a part of a catalog is, and that the check of lists finds every wrong."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.lists.settings import ListSettings
from recipes.evaluate import format_metrics
from recipes.evaluation.constrained import check_lists, make_constraint, read_allowed_items
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.scoring import load_metrics, make_model_line
from recipes.evaluation.single import evaluate
from recipes.evaluation.split import Split, read_split
from recipes.report import _summarise_lists
from tests.recipes.evaluation.small import row, write_rows
from tests.user_errors import refuses

CATALOG = [("Toy Story", 1995), ("Amelie", 2001), ("Amélie", 2001), ("Heat", 1995), ("Alien", 1979), ("1. Heat", 1995)]
SEEN = {"a": ["Heat"], "b": ["Alien"], "c": []}  # a and b are of one conversation
LISTS = ListSettings(num_items=2)


@pytest.fixture
def split(tmp_path: Path) -> Split:
    titles, years = zip(*CATALOG, strict=True)
    pq.write_table(pa.table({"title": titles, "year": years}), tmp_path / "catalog.parquet")
    conversations = {"a": "films", "b": "films", "c": "other"}
    rows = [row(name, conversations[name], ["Toy Story"], seen) for name, seen in SEEN.items()]
    write_rows(tmp_path / "data.parquet", rows)
    return read_split(tmp_path / "data.parquet", tmp_path / "catalog.parquet", LISTS)


@pytest.fixture
def model(tmp_path: Path, sound_model: Callable[..., Path], line_tokenizer: Any) -> str:
    folder = sound_model(tmp_path / "model")
    line_tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 320}))
    return str(folder)


def make_options(folder: Path, **changes: Any) -> EvaluationOptions:
    defaults: dict[str, Any] = {
        "data": str(folder / "data.parquet"),
        "catalog": str(folder / "catalog.parquet"),
        "num_items": 2,
    }
    defaults |= {"out": str(folder / "out"), "constrained": True, "progress": False}
    return EvaluationOptions(**defaults | changes)


def constraint_of(split: Split, model: str, folder: Path, **changes: Any) -> Any:
    return make_constraint(make_options(folder, **changes), split, model, LISTS)


def test_a_conversation_excludes_what_any_of_its_rows_has_seen(split: Split, model: str, tmp_path: Path) -> None:
    constraint, (warning,) = constraint_of(split, model, tmp_path)
    assert [*constraint.exclude.values()] == [[3, 4], []]  # Heat and Alien; nothing
    assert Path(constraint.trie).parent == tmp_path
    assert "1 rows are in no constrained list" in warning
    assert "row 5, '1. Heat (1995)'" in warning


def test_what_no_list_can_keep_is_refused_before_vllm_starts(split: Split, model: str, tmp_path: Path) -> None:
    part = tmp_path / "part.txt"
    part.write_text("Heat (1995)\nAmelie (2001)\nAlien (1979)\n")
    with refuses("evaluation.too-few-items", "part.txt", 3, 1, "--num-items"):
        constraint_of(split, model, tmp_path, allow=str(part))
    with pytest.raises(UserError, match=r"--max-response-length 9: "):
        constraint_of(split, model, tmp_path, max_response_length=9)
    with refuses("evaluation.unconstrained-endpoint", "api:x"):
        constraint_of(split, "api:x", tmp_path)
    with refuses("evaluation.conflicting-options", "--allow", part, "--constrained"):
        evaluate(make_options(tmp_path, model=model, constrained=False, allow=str(part)))


def test_a_part_of_the_catalog_is_named_by_lines_or_by_a_catalog(split: Split, tmp_path: Path) -> None:
    lines, table = tmp_path / "part.txt", tmp_path / "part.parquet"
    lines.write_text("1. Amélie (2001)\n\nHEAT (1995)\n", encoding="utf-8")
    pq.write_table(pa.table({"title": ["Heat", "Amelie"], "year": [1995, 2002]}), table)
    for part in (lines, table):
        assert read_allowed_items(part, split.matcher) == {1, 2, 3}  # both spellings
    lines.write_text("Heat (1995)\nJaws (1975)\n")
    with refuses("evaluation.unknown-allowed-item", "part.txt", "line 2", "'Jaws'"):
        read_allowed_items(lines, split.matcher)
    lines.write_text("\n")
    with refuses("evaluation.no-allowed-items", lines):
        read_allowed_items(lines, split.matcher)


def make_answers(split: Split, first: str, second: str) -> Mapping[str, Any]:
    return dict(zip(split.prompts, ({"text": first}, {"text": second}), strict=True))


def test_right_lists_are_counted_and_each_kind_of_wrong_is_found(split: Split) -> None:
    right, fine = "Amélie (2001)\nToy Story (1995)", "Heat (1995)\nAlien (1979)"
    counts = check_lists(split, make_answers(split, right, fine), LISTS)
    assert counts == {"lists": 2, "lines": 4, "out_of_catalog": 0, "repeated": 0, "seen": 0, "wrong_length": 0}
    wrong = {
        "out_of_catalog": "Toy Story (1995)\nJaws (1975)",
        "repeated": "Amelie (2001)\nAmélie (2001)",
        "seen": "Toy Story (1995)\nAlien (1979)",
        "wrong_length": "Toy Story (1995)",
    }
    for name, text in wrong.items():
        with pytest.raises(RuntimeError, match=f"'{name}': 1"):
            check_lists(split, make_answers(split, text, fine), LISTS)


def test_constrained_lists_stand_beside_free_ones_and_baselines(
    split: Split, model: str, tmp_path: Path, answer_with: Callable[..., Any]
) -> None:
    free, held = "Jaws (1975)\nToy Story (1995)", "Toy Story (1995)\nAmelie (2001)"
    answer_with(lambda _, constraint, **settings: held if constraint else free)
    options = make_options(tmp_path, model=model, train=str(tmp_path / "data.parquet"), protocols=("strict",))
    metrics = evaluate(options)
    assert list(metrics["results"]["strict"]) == ["model", "constrained", "popularity"]
    assert metrics["generation"]["prompts"] == 2 + 2
    # every row wants Toy Story: at rank 2 of the free lists, at rank 1 of the constrained ones, which have Amelie too
    gain = make_model_line(metrics)
    assert gain["recall@2 constrained gain"] == 0
    assert gain["ndcg@2 constrained gain"] == pytest.approx(1 - 1 / math.log2(3))
    assert gain["coverage constrained gain"] == pytest.approx(1 / metrics["settings"]["catalog_items"])
    assert gain["cold_share constrained gain"] == 0.5  # nobody wants Amelie
    assert "novelty" in pq.read_table(tmp_path / "out" / "rows_constrained.parquet").column_names
    out = tmp_path / "out"
    table = _summarise_lists({"a": out}, {"a": load_metrics(out)})["table"]
    assert [column["model"] for column in table][-2:] == ["a", "a, constrained"]
    fused = load_metrics(out)
    fused["results"]["strict"]["fused"] = fused["results"]["strict"]["constrained"]
    columns = [column["model"] for column in _summarise_lists({"a": out, "b": out}, {"a": fused, "b": fused})["table"]]
    assert columns == ["popularity", *(f"{name}{of}" for name in "ab" for of in ("", ", constrained", ", fused"))]
    title, _, printed = format_metrics(metrics).partition("constrained minus free lists, 3 rows paired:")
    assert "2 constrained lists of 4 lines: 0 out of catalog, 0 repeated" in title
    assert "  cold items          +0.5000 ±0.0000" in printed.splitlines()
    constrained = metrics["constrained"]["paired"]
    constrained |= {name: {"mean": math.nan, "se": math.nan, "p": math.nan} for name in ("recall@2", "cold_share")}
    *_, printed = format_metrics(metrics).partition("constrained minus free lists, 3 rows paired:")
    assert [line for line in printed.splitlines() if "–" in line] == ["  recall@2   –  p –", "  cold items          –"]
