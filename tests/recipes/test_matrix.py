"""The matrix file becomes runs; what the recipes and vLLM do with them is tested elsewhere."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.errors import UserError
from recipes import matrix
from recipes.matrix import markdown, read_matrix, row_of, runs_of, train

ROOT = Path(__file__).resolve().parents[2]


def test_the_shipped_matrix_has_every_variant_with_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIAL", "/data/redial")
    read = read_matrix(ROOT / "benchmarks" / "redial_matrix.yaml")
    runs = {run.name: run for run in runs_of(read)}
    assert len(runs) == 2 + 7 * 2
    assert runs["sft"].start == "sft_titles"
    assert runs["sft"].variables["LR"] == "3e-3"  # its own, not that of all
    assert runs["rank_exp_inf_mu2-s3408"].variables.items() >= {"MU": "2", "SEED": "3408", "LR": "2e-4"}.items()
    assert all(run.start == "sft" for run in runs.values() if run.recipe == "rank_grpo")
    budgets = {
        (run.variables["TOTAL_STEPS"], run.variables["ROLLOUT_N"]) for run in runs.values() if run.recipe != "sft"
    }
    assert len(budgets) == 1  # the same rollouts for all
    assert "--source /data/redial" in read["prepare"][0]["run"]


def test_the_study_has_a_start_for_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRPO", "GSPO", "EXP_INF", "LOG_DECAY"):
        monkeypatch.setenv(f"LR_{name}", "1e-4")
    runs = runs_of(read_matrix(ROOT / "benchmarks" / "rank_study.yaml"))
    assert [run.start for run in runs if run.variant == "gspo"] == ["sft-s3407", "sft-s3408", "sft-s3409"]
    rates = {run.name: run for run in runs_of(read_matrix(ROOT / "benchmarks" / "rank_study_rates.yaml"))}
    assert rates["gspo_3e-4"].variables.items() >= {"ALGORITHM": "gspo", "LR": "3e-4", "TOTAL_STEPS": "100"}.items()
    assert len(rates) == 1 + 4 * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("out: $NOT_SET_ANYWHERE\nruns: {}\nevaluate: {}\n", "NOT_SET_ANYWHERE is not set"),
        ("out: o\nruns: {}\n", "it needs out, runs and evaluate"),
        ("out: o\nruns: {}\nevaluate: {}\nrunz: {}\n", "unknown section runz"),
        ("out: o\nruns: {a: {start: b}}\nevaluate: {}\n", "no run of that name comes before"),
        ("out: o\nruns: {a: {variables: {LEARNING_RATE: 1}}}\nevaluate: {}\n", "LEARNING_RATE is no variable"),
        ("out: o\nruns: {a: {recipe: dpo}}\nevaluate: {}\n", "recipe=dpo: one of sft, rank_grpo"),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        runs_of(read_matrix(file))


def test_a_run_gets_its_variables_its_start_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "run_rank_grpo.sh"
    script.write_text('echo "$MODEL_PATH $SAVE_PATH $MU $1" > seen; exit ${STATUS:-0}\n')
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    run = matrix.Run("r-s1", "r", "rank_grpo", "sft", {"MU": "2", "SEED": "1"}, ["a=b"])
    train(run, Path("out"))
    assert (tmp_path / "seen").read_text() == "out/sft out/r-s1 2 a=b\n"
    monkeypatch.setenv("STATUS", "3")
    with pytest.raises(UserError, match=r"r-s1: run_rank_grpo\.sh ended with status 3"):
        train(run, Path("out"))


SMALL = """
out: OUT
seeds: [1]
runs: {sft: {}, a: {start: sft}, b: {start: sft}}
evaluate: {data: d, catalog: c, ks: [5]}
"""


def metrics_of(value: float, gain: float | None, **settings: Any) -> dict[str, Any]:
    names = ("recall@5", "ndcg@5")
    model: dict[str, Any] = {name: {"mean": value, "se": None} for name in names}  # JSON's form of NaN
    model |= {"catalog_hit_ratio": 1.0, "repeats_per_list": 0.0, "distinct_items": 3}
    model["calibration"] = {"mean": None, "se": None, "n": 0}  # no row has it
    part = {"n": 2, "ndcg@5": {"mean": value, "se": None}}
    found: dict[str, Any] = {
        "slices": {"turns": {"1": part}},
        "settings": {"data": "d", "catalog": "c", "protocols": ["paper"], "ks": [5], "catalog_items": 4} | settings,
        "results": {"paper": {"model": model}},
    }
    if gain is not None:
        found["paired"] = {name: {"mean": gain, "se": None, "p": None} for name in names}
    return found


def test_a_part_of_the_matrix_leaves_the_other_runs_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    file = tmp_path / "matrix.yaml"
    file.write_text(SMALL.replace("OUT", str(out)))

    def evaluate(out: Path, **_: Any) -> dict[str, Any]:
        found = metrics_of(*{"sft": (0.1, None), "a": (0.2, 0.1), "b": (0.3, 0.2)}[out.name])
        out.mkdir(parents=True, exist_ok=True)
        (out / "metrics.json").write_text(json.dumps(found))
        names = [name for name in found["results"]["paper"]["model"] if "@" in name]
        row = {"sample_id": "x", "prompt_id": "x"} | dict.fromkeys(names, 0.5)
        pq.write_table(pa.Table.from_pylist([row]), out / "rows.parquet")
        return found

    def train(run: matrix.Run, out: Path) -> None:
        (out / run.name / "metrics").mkdir(parents=True, exist_ok=True)
        (out / run.name / "metrics" / "0001.jsonl").write_text('{"step": 1, "data": {"rank_grpo/return@1": 0.5}}\n')

    drawn: list[list[str]] = []
    monkeypatch.setattr(matrix, "evaluate", evaluate)
    monkeypatch.setattr(matrix, "train", train)
    monkeypatch.setattr(matrix, "plot", lambda runs, out: drawn.append([run.name for run in runs]))
    assert matrix.main([str(file), "--only", "sft", "b"]) == 0
    assert matrix.main([str(file), "--only", "a"]) == 0
    assert [line.split(",")[0] for line in (out / "table.csv").read_text().splitlines()] == ["run", "sft", "a", "b"]
    assert "| b | 1 | 0.3000 | +0.2000 (se of each nan) |" in (out / "table.md").read_text()
    assert (out / "slices.csv").read_text().splitlines() == [
        "run,variant,seed,slice,part,rows,ndcg@5,ndcg@5 se",
        *(f"{run},{run},1,turns,1,2,{value}," for run, value in (("sft", 0.1), ("a", 0.2), ("b", 0.3))),
    ]
    assert drawn == [["sft", "b"], ["sft", "a", "b"]]

    (out / "evaluation" / "b" / "metrics.json").write_text(json.dumps(metrics_of(0.9, 0.9, limit=5)))
    capsys.readouterr()
    assert matrix.main([str(file), "--only", "a"]) == 0
    assert "warning: b: evaluated with other settings" in capsys.readouterr().err
    assert drawn[-1] == ["sft", "a"]


def test_variants_are_compared_conversation_by_conversation_over_their_seeds(tmp_path: Path) -> None:
    """ndcg@5 of y: a 0.2 and 0.4, b 0.5 and 0.5, so +0.2; of x +0.1: mean +0.15. z has no truth and does not count."""
    values = {"a-1": [0.1, 0.2, None], "a-2": [0.1, 0.4, None], "b-1": [0.2, 0.5, None], "b-2": [0.2, 0.5, None]}
    table = []
    for run, (x, y, none) in values.items():
        folder = tmp_path / "evaluation" / run
        folder.mkdir(parents=True)
        rows = [{"sample_id": name, "prompt_id": name, "ndcg@5": v} for name, v in (("x", x), ("y", y), ("z", none))]
        for row in rows:
            row["recommended"] = [1, 2] if run in ("b-1", "b-2") and row["sample_id"] == "y" else [1]
        ordered = rows if run == "a-1" else rows[::-1]
        pq.write_table(
            pa.Table.from_pylist([row | {"recall@5": row["ndcg@5"]} for row in ordered]), folder / "rows.parquet"
        )
        table.append({"variant": run[0], "seed": run[2], "run": run})
    table.append({"variant": "c", "seed": "1", "run": "a-1"})  # one of their seeds: compared with neither
    table.insert(0, {"variant": "start", "seed": "1", "run": "a-1"})
    of_start, *others, found = matrix.pairs(table, tmp_path, 5, 4)
    assert [(pair["variant"], pair["minus"]) for pair in (of_start, *others)] == [(name, "start") for name in "abc"]
    assert of_start["ndcg@5 mean"] == pytest.approx(0.05)  # y: 0.3 - 0.2
    assert (found["variant"], found["minus"], found["seeds"]) == ("b", "a", 2)
    assert found["ndcg@5 mean"] == pytest.approx(0.15)
    assert found["coverage mean"] == pytest.approx(1 / 4)  # two of the four items, of one
    assert found["ndcg@5 p"] == pytest.approx(0.5, abs=0.05)  # two conversations, two of four sign patterns


def test_a_start_that_is_not_evaluated_is_said_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(SMALL.replace("OUT", str(tmp_path / "out")))
    monkeypatch.setattr(matrix, "train", lambda run, out: pytest.fail("trained"))
    assert matrix.main([str(file), "--only", "a"]) == 2
    assert "--only a: sft, its start, is not evaluated yet; add it to --only" in capsys.readouterr().err


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

    def run(name: str, variant: str) -> matrix.Run:
        return matrix.Run(name, variant, "rank_grpo", None, {"SEED": "1"})

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
