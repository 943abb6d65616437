"""`convrec retrieval`: fitted by one command, its weights chosen on validation, and fused in an evaluation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convrec.retrieval.folder import load_notes
from recipes import evaluate, retrieval
from recipes.retrieval import fit_retrieval, main, weigh_main
from tests.recipes.evaluation.small import row, write_catalog, write_rows

FILMS = {"Alien": 1979, "Heat": 1995, "Jaws": 1975, "Up": 2009}
TRAIN = [
    row("a_t1", "space monsters", ["Alien"], films=FILMS),
    row("b_t1", "space ships", ["Alien"], films=FILMS),
    row("c_t1", "robbery crime", ["Heat"], ["Jaws"], FILMS),
    row("d_t1", "crime", ["Heat"], ["Jaws"], FILMS),
    row("e_t1", "sharks", ["Jaws"], films=FILMS),
]
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


def test_one_command_fits_beside_the_catalog_and_says_what_was_chosen(
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
    said = capsys.readouterr().out
    assert [*notes["ndcg@20"]] == ["popularity", "neighbours", "ridge", "text", "both", "fused"]
    assert all(f"\n{name} " in f"\n{said}" for name in notes["ndcg@20"])
    assert f"written to {folder}" in said
    assert notes["files"]["train 0"] == files["train"]
    assert notes["sha256"].keys() == notes["files"].keys()
    assert main(arguments(files)) == 2
    assert f"error: {folder}: already there; give --overwrite to replace it" in capsys.readouterr().err
    assert main(arguments(files, "--overwrite")) == 0
    other = tmp_path / "mine"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    assert main(arguments(files, "--overwrite", "--out", str(other))) == 2
    assert "holds letter.txt, which this command did not write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "rows", "problem"),
    [
        ("train", [row("a_t1", "space", [], films=FILMS)], "no training row of 1 wants an item of the catalog"),
        ("train", [], "no rows; check how the file was written"),
        ("validation", [row("v_t1", "space", [], films=FILMS)], "no row has ground truth"),
    ],
)
def test_what_cannot_be_fitted_is_one_line(
    files: dict[str, str], name: str, rows: list[Any], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(Path(files[name]), rows)
    assert main(arguments(files)) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    assert not Path(files["catalog"]).with_suffix(".retrieval").exists()


def test_validation_is_thinned_evenly(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "MOST_ROWS", 2)  # rows 0 and 2
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
        given = ["--model", "api:m", "--data", files["validation"], "--catalog", files["catalog"]]
        lists = ["--num-items", "3", "--ks", "1", "3", "--out", str(tmp_path / "out")]
        assert evaluate.main([*given, *lists, "--overwrite", *further]) == 0
        return json.loads((tmp_path / "out" / "metrics.json").read_text())

    return run


def test_the_weight_beside_a_model_is_chosen_on_validation_and_evaluation_fuses_with_it(
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
    assert "no weight beside a model's list was chosen" in capsys.readouterr().err
    evaluated()
    weigh = [*asked, "--evaluation", str(out)]
    assert weigh_main(weigh) == 0
    notes = load_notes(folder)
    table = {(line["weight"], line["constant"]): line["ndcg"] for line in notes["fusion_of"]["table"]}
    assert len(table) == 22
    # the model alone: Up in the third row; the retrieval alone: the two others; halves: Up first, the others' behind it
    assert table[1.0, 10.0] == pytest.approx(1 / 3)
    assert table[0.0, 10.0] == pytest.approx(notes["ndcg@20"]["fused"])
    assert table[0.5, 10.0] == pytest.approx((1 + 2 * 0.6309) / 3, abs=1e-4)
    chosen = notes["fusion"]
    assert table[chosen["weight"], chosen["constant"]] == max(table.values()) > table[0.0, 10.0]
    assert f"chosen: weight {chosen['weight']:g} for the model" in capsys.readouterr().out
    metrics = evaluated(*asked, "--baselines", "popularity", "retrieval", "--train", files["train"])
    results = metrics["results"]["paper"]
    assert list(results) == ["model", "popularity", "retrieval", "fused"]
    assert results["fused"]["ndcg@3"]["mean"] == pytest.approx(max(table.values()))
    assert results["model"]["ndcg@3"]["mean"] == pytest.approx(1 / 3)
    gain = results["model"]["ndcg@3"]["mean"] - results["fused"]["ndcg@3"]["mean"]
    assert metrics["minus"]["fused"]["ndcg@3"]["mean"] == pytest.approx(gain)
    assert metrics["settings"]["retrieval"] == str(folder)
    assert len(metrics["settings"]["sha256"]["retrieval"]) == 64
    # without a model the folder's lists are scored alone, and no training rows are needed
    alone = ["--data", files["validation"], "--catalog", files["catalog"], "--ks", "3", "--num-items", "3"]
    assert evaluate.main([*alone, *asked, "--out", str(tmp_path / "alone")]) == 0
    found = json.loads((tmp_path / "alone" / "metrics.json").read_text())["results"]["paper"]
    assert found["retrieval"]["ndcg@3"]["mean"] == pytest.approx(results["retrieval"]["ndcg@3"]["mean"])


def test_lists_that_were_written_of_other_rows_are_not_weighed(
    files: dict[str, str],
    tmp_path: Path,
    evaluated: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments(files)) == 0
    evaluated()
    weigh = ["--retrieval", str(tmp_path / "catalog.retrieval"), "--evaluation", str(tmp_path / "out")]
    write_rows(Path(files["validation"]), VALIDATION[:2])
    assert weigh_main(weigh) == 2
    assert f"{files['validation']} is gone or has changed; evaluate again" in capsys.readouterr().err
    alone = ["--data", files["validation"], "--catalog", files["catalog"], "--train", files["train"]]
    assert evaluate.main([*alone, "--out", str(tmp_path / "out"), "--overwrite", "--ks", "5"]) == 0
    assert weigh_main(weigh) == 2
    assert "of no model that writes lists" in capsys.readouterr().err
    assert weigh_main([*weigh[:2], "--evaluation", str(tmp_path / "none")]) == 2
    assert "no metrics.json" in capsys.readouterr().err
    assert "fusion" not in load_notes(tmp_path / "catalog.retrieval")


def test_on_real_conversations_each_part_knows_something_and_all_know_most(shared_dir: Path, tmp_path: Path) -> None:
    """ReDial, all of its catalog: popularity .045, neighbours .103, ridge .079, text .017 (473 rows, errors .01)."""
    data = shared_dir / "data" / "redial"
    train, validation, catalog = (data / f"{name}.parquet" for name in ("train", "validation", "catalog"))
    found = fit_retrieval([train], validation, catalog, tmp_path / "redial")["ndcg@20"]
    assert found["popularity"] == pytest.approx(0.0449, abs=0.0005)
    assert found["neighbours"] > 2 * found["popularity"]
    assert found["ridge"] > 1.6 * found["popularity"]
    assert found["fused"] >= max(found.values())
