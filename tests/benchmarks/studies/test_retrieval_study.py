"""The study of retrieval: each run reads the tables of its kind, starts from its own SFT, is evaluated as it reads."""

from pathlib import Path

from benchmarks.studies.retrieval_study import CONSTRAINED, SMALLEST, evaluations, runs, table, titles_run
from convrec.base.files import write_json
from recipes.evaluation.options import EvaluationOptions
from recipes.launch.recipe import RECIPES
from recipes.launch.variables import VARIABLES

NAMES = {variable.name for variable in VARIABLES}


def test_runs_start_from_their_own_and_read_their_own_prompts(tmp_path: Path) -> None:
    planned = runs(tmp_path, SMALLEST)
    assert len({run.name for run in planned}) == len(planned) == 3 * 3 * 3
    before: set[str] = set()
    for run in planned:
        assert {*run.variables} <= NAMES
        assert run.recipe in RECIPES
        assert run.start in before if run.recipe == "rank_grpo" else run.start is None
        further = run.variant.removeprefix(CONSTRAINED).removeprefix(run.recipe)
        assert ("CONSTRAINED" in run.variables) == run.variant.startswith(CONSTRAINED)
        assert run.start in (None, f"sft{further}-s{run.seed}")
        before.add(run.name)
        read = "data_candidates" if further else "data"
        taught = "data_reads" if further == "_reads" and run.recipe == "sft" else read
        chosen, test = (EvaluationOptions(**options) for options in evaluations(run, tmp_path))
        for file, folder in ((run.variables["TRAIN_FILE"], taught), (chosen.data, read), (test.data, read)):
            assert Path(file).parent.name == folder
        assert run.variables["CANDIDATES"] == ("50" if further else "0")
        assert (chosen.weigh, test.weigh, chosen.against) == (True, False, None)
        assert test.against == (str(tmp_path / "evaluation" / run.start) if run.start else None)
        assert (Path(chosen.data).stem, Path(test.data).stem) == ("validation", "test")
        assert chosen.retrieval == test.retrieval == str(tmp_path / "weighed" / run.name)


def test_sft_without_candidates_starts_from_the_titles_run(tmp_path: Path) -> None:
    titles = tmp_path / "data" / "sft_titles.parquet"
    titles.parent.mkdir()
    titles.touch()
    first, planned = titles_run(tmp_path, SMALLEST), runs(tmp_path, SMALLEST, (1,))
    assert first.variables["TRAIN_FILE"] == str(titles)
    start = str(tmp_path / first.name)
    assert [run.variant for run in planned if run.variables.get("MODEL_PATH") == start] == ["sft"]
    assert planned[0].overrides == [f"data.train_files=[{titles.with_name('sft_train.parquet')},{titles}]"]


def test_the_table_has_what_is_there_so_far(tmp_path: Path) -> None:
    planned = runs(tmp_path, SMALLEST, (1,))
    result = {"ndcg@20": {"mean": 0.5, "se": 0.01}, "coverage": {"mean": 0.2, "se": None}}
    names = ("model", "constrained", "popularity", "retrieval", "fused")
    minus = {"retrieval": {"ndcg@20": result["ndcg@20"]}}
    metrics = {"results": {"paper": dict.fromkeys(names, result)}, "minus": minus}
    write_json(tmp_path / "evaluation" / "sft-s1" / "metrics.json", metrics)
    _, _, *lines = table(tmp_path, planned).splitlines()
    assert [line.split(" | ")[0] for line in lines] == [
        "| popularity", "| retrieval", "| sft-s1", "| sft-s1, constrained", "| sft-s1, fused"
    ]  # fmt: skip
    assert lines[2] == "| sft-s1 | 0.5000 ± 0.0100 |  | 0.2000 ± 0.0000 |  |  | 0.5000 ± 0.0100 |  |"
