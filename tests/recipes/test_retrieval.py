"""`convrec retrieval`: fitted by one command, its weights chosen on validation, and fused in an evaluation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from convrec.data.schema import conversation_text
from convrec.features.candidates.prompts import CANDIDATES_LINE, count_candidates
from convrec.retrieval.folder import load_notes
from recipes import evaluate, retrieval
from recipes.retrieval import candidates_main, fit_retrieval, main, write_candidates
from tests.recipes.evaluation.small import row, write_catalog, write_rows
from tests.user_errors import refuses

FILMS = {"Alien": 1979, "Heat": 1995, "Jaws": 1975, "Up": 2009}
TRAIN = [
    row("a_t1", "space monsters", ["Alien"], films=FILMS),
    row("b_t1", "space ships", ["Alien"], films=FILMS),
    row("c_t1", "robbery crime", ["Heat"], ["Jaws"], FILMS),
    row("d_t1", "crime", ["Heat"], ["Jaws"], FILMS),
    row("e_t1", "sharks", ["Jaws"], films=FILMS),
]
NOTHING = row("z_t1", "nothing wanted", [], films=FILMS)
VALIDATION = [
    row("v_t1", "space travel", ["Alien"], films=FILMS),
    row("w_t1", "a crime", ["Heat"], films=FILMS),
    row("x_t1", "hello", ["Up"], films=FILMS),
    row("y_t1", "nothing wanted", [], films=FILMS),
]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {
        "train": write_rows(tmp_path / "train.parquet", TRAIN),
        "validation": write_rows(tmp_path / "validation.parquet", VALIDATION),
        "catalog": write_catalog(tmp_path / "catalog.parquet", FILMS),
    }


def arguments(files: dict[str, str], *further: str) -> list[str]:
    return [part for name, value in files.items() for part in (f"--{name}", value)] + [*further]


def test_a_catalog_that_is_replaced_while_it_is_read_is_refused(
    files: dict[str, str], tmp_path: Path, replace_when_read: Callable[[Path, Any], None]
) -> None:
    """Otherwise an item of one file would have the words of another one in the next."""
    train = Path(files["train"])
    catalog = Path(files["catalog"])
    folder = Path(fit_retrieval([train], Path(files["validation"]), catalog)["out"])
    replace_when_read(catalog, pq.read_table(catalog)[::-1])
    with refuses("catalog.changed", catalog):
        fit_retrieval([train], Path(files["validation"]), catalog, tmp_path / "other")
    replace_when_read(catalog, pq.read_table(catalog)[:3])
    with refuses("catalog.changed", catalog):
        write_candidates(folder, catalog, [train], tmp_path / "candidates")


def test_fit_command_writes_next_to_catalog_and_reports_choices(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(files)) == 0
    folder = tmp_path / "catalog.retrieval"
    notes = load_notes(folder)
    # alone, neighbours have Alien and Heat first and Up nowhere: (1 + 1 + 0) / 3; a row that wants nothing is left out
    assert notes["ndcg@20"]["neighbours"] == pytest.approx(2 / 3)
    # popularity: Alien, Heat twice each, Jaws once: (1 + 1 / log2(3) + 0) / 3
    assert notes["ndcg@20"]["popularity"] == pytest.approx((1 + 0.6309) / 3, abs=1e-4)
    assert notes["ndcg@20"]["fused"] == max(notes["ndcg@20"].values())
    printed = capsys.readouterr().out
    assert [*notes["ndcg@20"]] == ["popularity", "neighbours", "ridge", "text", "fused"]
    assert all(f"\n{name} " in f"\n{printed}" for name in notes["ndcg@20"])
    assert f"written to {folder}" in printed
    assert notes["files"]["train 0"] == files["train"]
    assert notes["sha256"].keys() == notes["files"].keys()
    assert main(arguments(files)) == 2
    assert f"error: {folder}: " in capsys.readouterr().err
    assert main(arguments(files, "--overwrite")) == 0
    other = tmp_path / "mine"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    assert main(arguments(files, "--overwrite", "--out", str(other))) == 2
    assert "letter.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "rows", "problem"),
    [
        ("train", [row("a_t1", "space", [], films=FILMS)], "error: "),
        ("train", [], "train.parquet"),
        ("validation", [row("v_t1", "space", [], films=FILMS)], "[evaluation.no-ground-truth]"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_line(
    files: dict[str, str], name: str, rows: list[Any], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(Path(files[name]), rows)
    assert main(arguments(files)) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    assert not Path(files["catalog"]).with_suffix(".retrieval").exists()


def test_validation_is_thinned_evenly(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(
        Path(files["validation"]),
        [one for n, row in enumerate(VALIDATION[:3]) for one in (NOTHING | {"sample_id": f"z{n}"}, row)],
    )
    monkeypatch.setattr(retrieval, "MAX_ROWS", 2)  # rows 0 and 2 of those that want something
    notes = fit_retrieval([Path(files["train"])], Path(files["validation"]), Path(files["catalog"]))
    assert notes["ndcg@20"]["neighbours"] == pytest.approx(1 / 2)


@pytest.fixture
def evaluated(
    files: dict[str, str], tmp_path: Path, chat_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Evaluates a model that always writes Up, twice, and a line that is no item."""
    text = "Up (2009)\nNo film (1999)\nUp (2009)"
    monkeypatch.setenv("LLM_BASE_URL", chat_server(lambda body, count: text).url)
    monkeypatch.setenv("LLM_API_KEY", "none")

    def run(*further: str) -> dict[str, Any]:
        common_arguments = ["--model", "api:m", "--data", files["validation"], "--catalog", files["catalog"]]
        lists = ["--num-items", "3", "--ks", "1", "3", "--out", str(tmp_path / "out")]
        assert evaluate.main([*common_arguments, *lists, "--overwrite", *further]) == 0
        return json.loads((tmp_path / "out" / "metrics.json").read_text())

    return run


def test_fusion_weight_is_chosen_on_validation_and_evaluated(
    files: dict[str, str],
    tmp_path: Path,
    evaluated: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, out = tmp_path / "catalog.retrieval", tmp_path / "out"
    assert main(arguments(files)) == 0
    asked = ["--retrieval", str(folder)]
    fails = ["--model", "api:m", "--data", files["validation"], "--catalog", files["catalog"], "--out", str(out)]
    assert evaluate.main([*fails, *asked]) == 2  # before the model is asked
    assert str(folder) in capsys.readouterr().err
    assert evaluated(*asked, "--weigh")["settings"]["fusion"] == load_notes(folder)["fusion"]
    notes = load_notes(folder)
    table = {(line["weight"], line["constant"]): line["ndcg@3"] for line in notes["fusion_of"]["table"]}
    assert len(table) == 22
    # the model alone: Up in the third row; the retrieval alone: the two others; halves: Up first, the others' behind it
    assert table[1.0, 10.0] == pytest.approx(1 / 3)
    assert table[0.0, 10.0] == pytest.approx(notes["ndcg@20"]["fused"])
    assert table[0.5, 10.0] == pytest.approx((1 + 2 * 0.6309) / 3, abs=1e-4)
    chosen = notes["fusion"]
    assert table[chosen["weight"], chosen["constant"]] == max(table.values()) > table[0.0, 10.0]
    assert f"fused: weight {chosen['weight']:g} for the model, constant" in capsys.readouterr().out
    metrics = evaluated(*asked, "--baselines", "popularity", "retrieval", "--train", files["train"])
    results = metrics["results"]["paper"]
    assert list(results) == ["model", "popularity", "retrieval", "fused"]
    assert results["fused"]["ndcg@3"]["mean"] == pytest.approx(max(table.values()))
    assert results["model"]["ndcg@3"]["mean"] == pytest.approx(1 / 3)
    gain = results["model"]["ndcg@3"]["mean"] - results["fused"]["ndcg@3"]["mean"]
    assert metrics["minus"]["fused"]["ndcg@3"]["mean"] == pytest.approx(gain)
    over_retrieval = results["fused"]["ndcg@3"]["mean"] - results["retrieval"]["ndcg@3"]["mean"]
    assert metrics["fused"]["paired"]["ndcg@3"]["mean"] == pytest.approx(over_retrieval)
    assert f"fused minus retrieval, ndcg@3: +{over_retrieval:.4f} ±" in capsys.readouterr().out
    assert metrics["settings"]["retrieval"] == str(folder)
    assert metrics["settings"]["fusion"] == chosen
    # without a model the folder's lists are scored alone, and no training rows are needed
    alone = ["--data", files["validation"], "--catalog", files["catalog"], "--ks", "3", "--num-items", "3"]
    assert evaluate.main([*alone, *asked, "--out", str(tmp_path / "alone")]) == 0
    found = json.loads((tmp_path / "alone" / "metrics.json").read_text())["results"]["paper"]
    assert found["retrieval"]["ndcg@3"]["mean"] == pytest.approx(results["retrieval"]["ndcg@3"]["mean"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--weigh", "--model", "api:m"], "--retrieval"),
        (["--weigh", "--retrieval", "none"], "--model"),
        (["--retrieval", "none"], "--retrieval none: "),
    ],
)
def test_what_cannot_be_weighed_is_refused(
    files: dict[str, str], tmp_path: Path, options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--data", files["validation"], "--catalog", files["catalog"], "--out", str(tmp_path / "out")]
    assert evaluate.main([*common, *options]) == 2
    assert problem in capsys.readouterr().err


def test_tables_get_candidates_from_other_conversations(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(files)) == 0
    out, folder = tmp_path / "with_2", tmp_path / "catalog.retrieval"
    tables = ["--tables", files["train"], files["validation"], "--catalog", files["catalog"]]
    common_arguments = ["--retrieval", str(folder), *tables, "--count", "2"]
    assert candidates_main([*common_arguments, "--out", str(out)]) == 0
    assert f"written to {out}: train with CANDIDATES=2" in capsys.readouterr().out
    for name, rows in (("train", TRAIN), ("validation", VALIDATION)):
        written = pq.read_table(out / f"{name}.parquet").to_pylist()
        for before, after in zip(rows, written, strict=True):
            assert {**after, "prompt": before["prompt"]} == before
            assert conversation_text(after) == conversation_text(before)
            assert count_candidates(after["prompt"][0]["content"]) == 2
    found = {row["sample_id"]: row["prompt"][0]["content"] for row in written}
    assert f"{CANDIDATES_LINE}Alien (1979)\nHeat (1995)\nHere is the conversation: " in found["v_t1"]
    (shark,) = (row for row in pq.read_table(out / "train.parquet").to_pylist() if row["sample_id"] == "e_t1")
    assert "Jaws" not in shark["prompt"][0]["content"]  # it alone wants Jaws, and names no other's words
    # of tables that have some, the new ones are in their place
    tables_again = ["--tables", str(out / "train.parquet"), str(out / "validation.parquet"), *tables[3:]]
    again = [*common_arguments[:2], *tables_again]
    assert candidates_main([*again, "--count", "1", "--out", str(tmp_path / "with_1")]) == 0
    (prompt, *_) = pq.read_table(tmp_path / "with_1" / "validation.parquet")["prompt"].to_pylist()[0]
    assert f"{CANDIDATES_LINE}Alien (1979)\nHere is the conversation: " in prompt["content"]
    assert candidates_main([*common_arguments, "--out", str(out)]) == 2
    assert f"error: {out}: " in capsys.readouterr().err
    (tmp_path / "more").mkdir()
    namesake = write_rows(tmp_path / "more" / "train.parquet", TRAIN[:1])
    tables = ["--tables", files["train"], namesake, "--catalog", files["catalog"]]
    assert candidates_main([*common_arguments[:2], *tables, "--out", str(tmp_path / "one")]) == 2
    assert capsys.readouterr().err.endswith("[retrieval.duplicate-table]\n")
    assert candidates_main([*common_arguments, "--count", "0", "--out", str(out)]) == 2
    assert "--count 0: " in capsys.readouterr().err


def test_fused_retrieval_beats_each_part_on_real_conversations(shared_dir: Path, tmp_path: Path) -> None:
    """ReDial, all of its catalog: popularity .045, neighbours .103, ridge .079, text .017 (473 rows, errors .01)."""
    data = shared_dir / "data" / "redial"
    train, validation, catalog = (data / f"{name}.parquet" for name in ("train", "validation", "catalog"))
    found = fit_retrieval([train], validation, catalog, tmp_path / "redial")["ndcg@20"]
    assert found["popularity"] == pytest.approx(0.0449, abs=0.0005)
    assert found["neighbours"] > 2 * found["popularity"]
    assert found["ridge"] > 1.6 * found["popularity"]
    assert found["fused"] >= max(found.values())
