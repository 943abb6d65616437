"""What is refused before vLLM starts, what a part of a catalog is, and that the check of lists finds every wrong."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data.schema import RL_SCHEMA, prompt_text
from convrec.errors import UserError
from convrec.generation import answers as generations
from convrec.lists.settings import ListSettings
from recipes.evaluate import format_metrics
from recipes.evaluation.constrained import check_lists, make_constraint, read_allowed
from recipes.evaluation.scoring import constrained_gain
from recipes.evaluation.single import EMPTY, OTHER, evaluate
from recipes.evaluation.split import Split, read_split
from recipes.report import _metrics, _table
from tests.recipes.conftest import generated

CATALOG = [("Toy Story", 1995), ("Amelie", 2001), ("Amélie", 2001), ("Heat", 1995), ("Alien", 1979), ("1. Heat", 1995)]
SEEN = {"a": ["Heat"], "b": ["Alien"], "c": []}  # a and b are of one conversation
LISTS = ListSettings(num_items=2)


@pytest.fixture
def split(tmp_path: Path) -> Split:
    titles, years = zip(*CATALOG, strict=True)
    pq.write_table(pa.table({"title": titles, "year": years}), tmp_path / "catalog.parquet")
    rows = [
        {
            "prompt": [{"role": "user", "content": prompt_text(f"USER: {'other' if name == 'c' else 'films'}\n", 2)}],
            "seen_titles": seen,
            "groundtruth_with_release_year": [["Toy Story", "1995"]],
            "sample_id": name,
        }
        for name, seen in SEEN.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), tmp_path / "data.parquet")
    return read_split(tmp_path / "data.parquet", tmp_path / "catalog.parquet", LISTS)


@pytest.fixture
def model(tmp_path: Path, sound_model: Callable[..., Path], line_tokenizer: Any) -> str:
    folder = sound_model(tmp_path / "model")
    line_tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": len(line_tokenizer)}))
    return str(folder)


def constraint_of(split: Split, model: str, out: Path, allow: Path | None = None, max_tokens: int = 200) -> Any:
    return make_constraint(split, out / "catalog.parquet", model, LISTS, max_tokens, allow, out)


def test_a_conversation_excludes_what_any_of_its_rows_has_seen(split: Split, model: str, tmp_path: Path) -> None:
    constraint, (warning,) = constraint_of(split, model, tmp_path)
    assert [*constraint.exclude.values()] == [[3, 4], []]  # Heat and Alien; nothing
    assert Path(constraint.trie).parent == tmp_path
    assert "1 rows are in no constrained list" in warning
    assert "row 5, '1. Heat (1995)'" in warning


def test_what_no_list_can_keep_is_refused_before_vllm_starts(split: Split, model: str, tmp_path: Path) -> None:
    part = tmp_path / "part.txt"
    part.write_text("Heat (1995)\nAmelie (2001)\nAlien (1979)\n")
    with pytest.raises(UserError, match=r"part\.txt: of its 3 items 1 are not seen in the conversation of a, and a "):
        constraint_of(split, model, tmp_path, part)
    with pytest.raises(UserError, match=r"--max-response-length 9: 2 items can take \d+ tokens \(the longest is row"):
        constraint_of(split, model, tmp_path, max_tokens=9)
    with pytest.raises(UserError, match=r"api:x is behind an endpoint"):
        constraint_of(split, "api:x", tmp_path)
    with pytest.raises(UserError, match="add --constrained"):
        evaluate(
            model=model,
            data=tmp_path / "data.parquet",
            catalog=tmp_path / "catalog.parquet",
            out=tmp_path / "out",
            num_items=2,
            allow=part,
        )


def test_a_part_of_the_catalog_is_named_by_lines_or_by_a_catalog(split: Split, tmp_path: Path) -> None:
    lines, table = tmp_path / "part.txt", tmp_path / "part.parquet"
    lines.write_text("1. Amélie (2001)\n\nHEAT (1995)\n", encoding="utf-8")
    pq.write_table(pa.table({"title": ["Heat", "Amelie"], "year": [1995, 2002]}), table)
    for part in (lines, table):
        assert read_allowed(part, split.matcher) == {1, 2, 3}  # both spellings
    lines.write_text("Heat (1995)\nJaws (1975)\n")
    with pytest.raises(UserError, match=r"part\.txt, line 2: 'Jaws' is no item of the catalog"):
        read_allowed(lines, split.matcher)
    lines.write_text("\n")
    with pytest.raises(UserError, match="names no item"):
        read_allowed(lines, split.matcher)


def answers_of(split: Split, first: str, second: str) -> Mapping[str, Any]:
    return dict(zip(split.prompts, ({"text": first}, {"text": second}), strict=True))


def test_right_lists_are_counted_and_each_kind_of_wrong_is_found(split: Split) -> None:
    right, fine = "Amélie (2001)\nToy Story (1995)", "Heat (1995)\nAlien (1979)"
    counts = check_lists(split, answers_of(split, right, fine), LISTS)
    assert counts == {"lists": 2, "lines": 4, "out_of_catalog": 0, "repeated": 0, "seen": 0, "wrong_length": 0}
    wrong = {
        "out_of_catalog": "Toy Story (1995)\nJaws (1975)",
        "repeated": "Amelie (2001)\nAmélie (2001)",
        "seen": "Toy Story (1995)\nAlien (1979)",
        "wrong_length": "Toy Story (1995)",
    }
    for name, text in wrong.items():
        with pytest.raises(RuntimeError, match=f"'{name}': 1"):
            check_lists(split, answers_of(split, text, fine), LISTS)


def test_constrained_lists_stand_beside_free_ones_baselines_and_probes(
    split: Split, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake_generate(model: str, prompts: list[Any], *, constraint: Any, on_batch: Any, **settings: object) -> None:
        text = "Toy Story (1995)\nAmelie (2001)" if constraint else "Jaws (1975)\nToy Story (1995)"
        on_batch(generated(*[text] * len(prompts)))

    monkeypatch.setattr(generations, "generate", fake_generate)
    data, catalog = tmp_path / "data.parquet", tmp_path / "catalog.parquet"
    metrics = evaluate(
        model=model,
        data=data,
        catalog=catalog,
        train=data,
        out=tmp_path / "out",
        num_items=2,
        probe=True,
        protocols=("strict",),
        constrained=True,
        progress=False,
    )
    assert list(metrics["results"]["strict"]) == ["model", "constrained", "popularity", EMPTY, OTHER]
    assert set(metrics["minus"]) == {"popularity", EMPTY, OTHER}
    assert metrics["generation"]["prompts"] == 3 + 2  # free lists of two conversations and of none, two constrained
    # every row wants Toy Story: at rank 2 of the free lists, at rank 1 of the constrained ones, which have Amelie too
    gain = constrained_gain(metrics)
    assert gain["recall@2 constrained gain"] == 0
    assert gain["ndcg@2 constrained gain"] == pytest.approx(1 - 1 / math.log2(3))
    assert gain["coverage constrained gain"] == pytest.approx(1 / metrics["settings"]["catalog_items"])
    assert gain["cold_share constrained gain"] == 0.5  # nobody wants Amelie
    assert "novelty" in pq.read_table(tmp_path / "out" / "rows_constrained.parquet").column_names
    assert [row["model"] for row in _table({"a": _metrics(tmp_path / "out")})[0]][-2:] == ["a", "a, constrained"]
    title, _, printed = format_metrics(metrics).partition("constrained minus free lists, 3 rows paired:")
    assert "2 constrained lists of 4 lines: 0 out of catalog, 0 repeated" in title
    assert "  cold items          +0.5000 ±0.0000" in printed.splitlines()
