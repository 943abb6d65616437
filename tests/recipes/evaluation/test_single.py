"""Evaluation of one model: requests, scores, files, and refused input."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.data.tokenizer import load_tokenizer
from recipes import evaluate as command
from recipes.evaluation.examples import choose_examples
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.setup import prepare_evaluation
from recipes.evaluation.single import evaluate
from recipes.tiny_model import make_tiny_model
from tests.conftest import mark_complete
from tests.recipes.evaluation.small import row, write_catalog, write_rows
from tests.user_errors import refuses

LISTS = {
    "space": "Alien (1979)\nJaws (1975)\nHeat (1995)",
    "crime": "Toy Story (1995)\nHeat (1995)\nHeat (1995)\nNot a film",
    "": "Heat (1995)",  # of the instruction alone
}
ROWS = [
    row("a", "space", ["Alien"]),
    row("b", "space", ["Heat"]),  # the same conversation, another user's answer
    row("c", "crime", ["Heat"], seen=["Toy Story"]),
    row("d", "crime"),
]
TRAIN = [row("t1", "x", ["Heat"]), row("t2", "y", ["Heat", "Jaws"])]
Files = dict[str, str]
Asked = list[list[str]]


@pytest.fixture
def files(tmp_path: Path, sound_model: Callable[..., Path]) -> Files:
    """A split, a catalog, a training split in which Heat is the most popular, and a folder that passes for a model."""
    return {
        "data": write_rows(tmp_path / "data.parquet", ROWS),
        "catalog": write_catalog(tmp_path / "catalog.parquet"),
        "train": write_rows(tmp_path / "train.parquet", TRAIN),
        "model": str(sound_model(tmp_path / "model")),
    }


@pytest.fixture
def lists() -> dict[str, str]:
    """Of each conversation; a test may change them."""
    return dict(LISTS)


@pytest.fixture
def asked(answer_with: Callable[..., Asked], lists: dict[str, str]) -> Asked:
    return answer_with(lambda conversation, **_: lists[conversation])


def run(files: Files, out: Path, **changes: Any) -> dict[str, Any]:
    options = {**files, "out": out, "num_items": 3, "ks": (1, 3), "progress": False} | changes
    paths = {name: str(value) for name, value in options.items() if isinstance(value, Path)}
    return evaluate(EvaluationOptions(**options | paths))


def test_a_catalog_that_is_replaced_while_it_is_read_is_refused(
    files: Files, tmp_path: Path, replace_when_read: Callable[[Path, Any], None]
) -> None:
    """metrics.json would have the hash of another catalog than the one that scored the lists."""
    catalog = Path(files["catalog"])
    replace_when_read(catalog, pq.read_table(catalog)[::-1])
    with refuses("catalog.changed", catalog):
        prepare_evaluation(EvaluationOptions(**files, out=str(tmp_path / "out"), num_items=3, ks=(1, 3)))


def test_each_distinct_prompt_is_asked_once_and_scored_per_row(files: Files, asked: Asked, tmp_path: Path) -> None:
    metrics = run(files, tmp_path / "out")
    assert asked == [["space", "crime"]]
    summary, popularity = (metrics["results"]["paper"][name] for name in ("model", "popularity"))
    assert (summary["n"], summary["num_contexts"], summary["without_ground_truth"]) == (3, 2, 1)
    # a: Alien at rank 1. b: Heat at rank 3. c: seen Toy Story and the unparsable line go, Heat moves up to rank 1.
    assert summary["recall@1"]["mean"] == pytest.approx(2 / 3)
    assert summary["recall@3"]["mean"] == pytest.approx(1.0)
    assert summary["ndcg@3"]["mean"] == pytest.approx((1 + 1 / math.log2(4) + 1) / 3)
    assert summary["list_length_errors"] == 1  # c has four lines
    assert summary["repeats_per_list"] == pytest.approx(1 / 3)
    # Heat, Jaws: rows b and c want Heat, which is first; a wants Alien.
    assert popularity["recall@1"]["mean"] == pytest.approx(2 / 3)
    assert popularity["distinct_items"] == 2
    text = command.format_metrics(metrics)
    assert [
        part for part in ("popularity", "Recall@3", "1 rows without ground truth left out") if part not in text
    ] == []


def test_lists_that_are_all_of_another_length_are_warned_about(
    files: Files, asked: Asked, lists: dict[str, str], tmp_path: Path
) -> None:
    lists |= dict.fromkeys(lists, "Heat (1995)\nJaws (1975)")
    (warning,) = run(files, tmp_path / "out")["warnings"]
    assert warning.startswith("4 of 4 lists have 2 items, not 3")


def test_further_protocols_are_scored_from_the_same_lists(files: Files, asked: Asked, tmp_path: Path) -> None:
    metrics = run(files, tmp_path / "out", protocols=("paper", "strict"))
    assert len(asked) == 1
    strict = metrics["results"]["strict"]["model"]
    assert strict["recall@1"]["mean"] == pytest.approx(1 / 3)  # positions content_before: c's Heat stays at rank 2
    columns = pq.read_table(tmp_path / "out" / "rows.parquet").column_names
    assert {"recall@1", "strict/recall@1", "text", "prompt_id", "sample_id"} <= set(columns)


def test_answers_are_used_again_until_weights_or_settings_change(
    files: Files, asked: Asked, tmp_path: Path, sound_model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def new(**changes: Any) -> int:
        return run(files, tmp_path / "out", **changes)["generation"]["generated"]

    assert [new(limit=2), new(), new(), new(seed=1)] == [1, 1, 0, 0]  # greedy lists have no seed
    assert capsys.readouterr().err == ""
    assert [new(max_response_length=77), new(max_response_length=77)] == [2, 0]
    assert "generations.parquet: replacing 2 answers from another model" in capsys.readouterr().err
    sound_model(Path(files["model"]), weight=0.25)
    assert new(max_response_length=77) == 2
    copy = sound_model(tmp_path / "copy", weight=0.25)  # the contents count, neither place nor time
    assert new(max_response_length=77, model=copy) == 0


def test_files_hold_what_was_returned(files: Files, asked: Asked, tmp_path: Path) -> None:
    out = tmp_path / "out"
    metrics = run(files, out, limit=1)
    read = json.loads((out / "metrics.json").read_text())  # a standard error of one conversation is null, not NaN
    assert read["results"]["paper"]["model"]["recall@1"] == {"mean": 1.0, "se": None}
    assert math.isnan(metrics["results"]["paper"]["model"]["recall@1"]["se"])
    rows = pq.read_table(out / "rows.parquet").to_pylist()
    assert [(r["sample_id"], r["recall@1"], r["text"]) for r in rows] == [("a", 1.0, LISTS["space"])]


@pytest.mark.parametrize(("choice", "step"), [("", 100), ("@best", 100), ("@last", 200)])
def test_a_run_is_evaluated_at_its_best_checkpoint(
    files: Files, tmp_path: Path, asked: Asked, validated_run: Path, choice: str, step: int
) -> None:
    model = f"{validated_run}{choice}"
    settings = run(files, tmp_path / "out", model=model)["settings"]
    assert settings["model"] == model
    assert settings["model_path"] == str(validated_run / f"global_step_{step}" / "actor" / "huggingface")


def test_a_runs_checkpoint_is_asked_and_scored_as_it_was_trained(
    files: Files, tmp_path: Path, answer_with: Callable[..., Asked], sound_model: Callable[..., Path]
) -> None:
    asked_with: list[object] = []

    def answer(_: str, **settings: Any) -> str:
        asked_with.append(settings.get("chat_template_kwargs"))
        return "Jaws (1975)|Heat (1998)"

    answer_with(answer)
    folder = tmp_path / "run"
    sound_model(folder / "global_step_4" / "actor" / "huggingface")
    mark_complete(folder, 4)
    (folder / "config.yaml").write_text(
        "convrec: {num_items: 2, delimiter: '|', matching: exact, year_tolerance: 3, fuzzy_cutoff: 80}\n"
        "data: {apply_chat_template_kwargs: {enable_thinking: true}}\n"
    )
    unsaid = {"num_items": None, "ks": None, "model": folder, "protocols": ("strict",)}
    metrics = run(files, tmp_path / "out", **unsaid)
    trained = {"num_items": 2, "delimiter": "|", "matching": "exact", "year_tolerance": 3, "fuzzy_cutoff": 80}
    assert {name: metrics["settings"][name] for name in trained} == trained
    assert asked_with[-1] == {"enable_thinking": True}
    model = metrics["results"]["strict"]["model"]
    assert metrics["settings"]["ks"] == [2]
    assert (model["recall@2"]["mean"], model["list_length_errors"]) == (pytest.approx(2 / 3), 0)  # Heat is b's and c's
    # it is shown split at that delimiter, too
    assert [line.marks for line in choose_examples({"run": tmp_path / "out"}, {})[0].lists["run"]] == [
        ("miss",),
        ("hit",),
    ]

    for place in (folder / "global_step_4", folder / "global_step_4" / "actor" / "huggingface"):
        assert run(files, tmp_path / "out", **(unsaid | {"model": place}))["settings"]["delimiter"] == "|"
    # what is given counts before the run's: Heat (1998) is three years from the ground truth, and now too far
    closer = run(files, tmp_path / "out", **unsaid, year_tolerance=2)
    assert closer["results"]["strict"]["model"]["recall@2"]["mean"] == 0
    # of no run, the usual: one line is one item
    usual = run(files, tmp_path / "out2", num_items=None)["settings"]
    assert (usual["num_items"], usual["delimiter"], usual["matching"]) == (20, "\n", "fuzzy")
    assert asked_with[-1] is None
    # a sweep's start model is asked as the swept run is, also when it is a checkpoint of another
    assert run(files, tmp_path / "out2", run=folder)["settings"]["delimiter"] == "|"
    assert run(files, tmp_path / "out2", model=folder, run=tmp_path)["settings"]["delimiter"] == "\n"


def test_prompts_lacking_the_trained_candidates_raise_a_warning(files: Files, asked: Asked, tmp_path: Path) -> None:
    for candidates in (0, 50):
        (tmp_path / "config.yaml").write_text(f"convrec: {{candidates: {candidates}}}\n")
        warnings = "\n".join(run(files, tmp_path / f"out{candidates}", run=tmp_path)["warnings"])
        assert ("CANDIDATES=50" in warnings) == bool(candidates)


def test_reference_protocol_uses_its_own_matcher_by_default(
    files: Files, asked: Asked, lists: dict[str, str], tmp_path: Path
) -> None:
    lists["space"] = "alien (1979)"  # another case: not in the reference's catalog
    recall = {}
    for matching in (None, "fuzzy"):
        metrics = run(files, tmp_path / "out", protocols=("paper", "reference"), matching=matching)
        recall[matching] = [metrics["results"][name]["model"]["recall@1"]["mean"] for name in ("paper", "reference")]
        assert f"protocol reference, matching {matching or 'reference'}" in command.format_metrics(metrics)
    # a: Alien at rank 1 but for the reference; c: Heat moves up to rank 1
    assert recall == {None: pytest.approx([2 / 3, 1 / 3]), "fuzzy": pytest.approx([2 / 3, 2 / 3])}


# ---- against an earlier evaluation


def test_paired_novelty_needs_the_same_training_rows(
    files: Files, asked: Asked, lists: dict[str, str], tmp_path: Path
) -> None:
    run(files, tmp_path / "before")
    lists["space"] = "Heat (1995)"
    changes = {"against": tmp_path / "before", "max_response_length": 9}
    metrics = run(files, tmp_path / "after", **changes)
    # before Heat 2, Jaws 1, Alien 0 of two training rows: 0, 1, 1 bits, mean 2/3; after Heat alone: 0. c: both 0.5
    assert metrics["paired"]["novelty"]["mean"] == pytest.approx(-2 / 3 * 2 / 3)
    assert metrics["paired"]["coverage"]["mean"] == -0.5
    assert metrics["slices"]["wanted"]["1"]["recall@3 gain"]["mean"] == pytest.approx(-1 / 3)
    assert "catalog coverage    -0.5000" in command.format_metrics(metrics)
    without = run(files, tmp_path / "after", **changes, train=None)
    assert "novelty" not in without["paired"]
    assert without["paired"]["coverage"]["mean"] == -0.5


def test_only_evaluations_that_were_scored_alike_are_compared(files: Files, asked: Asked, tmp_path: Path) -> None:
    before = tmp_path / "before"
    run(files, before, train=None)
    copy = tmp_path / "elsewhere" / "catalog.parquet"
    copy.parent.mkdir()
    copy.write_bytes(Path(files["catalog"]).read_bytes())
    assert run(files, tmp_path / "after", against=before, catalog=copy)["paired"]["recall@1"]["mean"] == 0
    write_catalog(copy, {"Heat": 1995})
    for changes, unlike in (
        ({"matching": "exact"}, "matching was 'fuzzy' and is 'exact'"),
        ({"num_items": 4}, "num_items was 3 and is 4"),
        ({"year_tolerance": 1}, "year_tolerance was 2 and is 1"),
        ({"protocols": ("strict",)}, "protocol was 'paper' and is 'strict'"),
        ({"ks": (1, 2)}, "ks was [1, 3] and is [1, 2]"),
        ({"catalog": copy, "train": None}, "catalog was 'catalog.parquet (SHA-256 "),
    ):
        with refuses("evaluation.other-scoring", f"--against {before}", unlike):
            run(files, tmp_path / "after", against=before, **changes)
    with refuses("evaluation.conflicting-options", "--against", "--out"):
        run(files, before, against=tmp_path / "elsewhere" / ".." / "before")
    for content, code in (
        ('{"settings": {"mod', "evaluation.damaged-metrics"),
        ('{"settings": {"judge": "pairwise"}}', "evaluation.judge-against-lists"),
    ):
        (before / "metrics.json").write_text(content)
        with refuses(code, f"--against {before}"):
            run(files, tmp_path / "after", against=before)


def test_paired_comparison_is_by_row(files: Files, asked: Asked, lists: dict[str, str], tmp_path: Path) -> None:
    run(files, tmp_path / "before")
    lists["space"] = "Heat (1995)\nJaws (1975)\nAlien (1979)"  # a loses rank 1, b wins it
    metrics = run(files, tmp_path / "after", against=tmp_path / "before", max_response_length=9)
    assert metrics["paired"]["n"] == 3
    assert metrics["paired"]["recall@1"]["mean"] == pytest.approx(0.0)
    assert "rows paired" in command.format_metrics(metrics)

    evaluations = {"sft": tmp_path / "before", "rank_grpo": tmp_path / "after"}
    references = {"rank_grpo": "sft"}
    chosen = choose_examples(evaluations, references)
    # NDCG@3 before -> after: b 0.5 -> 1, c 1 -> 1, a 1 -> 0.5
    assert [example.label for example in chosen] == [
        "the largest gain of rank_grpo over sft (NDCG@3 +0.50); the best of rank_grpo (NDCG@3 1.00)",
        "in between (NDCG@3 +0.00)",
        "the largest loss of rank_grpo over sft (NDCG@3 -0.50); the worst of rank_grpo (NDCG@3 0.50)",
    ]
    only_gain = [example.label.split(" (")[0] for example in choose_examples(evaluations, references, count=1)]
    assert only_gain == ["the largest gain of rank_grpo over sft", "the worst of rank_grpo"]
    assert chosen[0].lists["rank_grpo"][0].marks == ("hit",)
    assert chosen[0].conversation == "USER: space\n"


# ---- what is refused or left out


@pytest.mark.parametrize(
    ("changes", "code", "value"),
    [
        ({"ks": (5,)}, "evaluation.invalid-cutoff", "--ks 5"),
        ({"against": "nothing"}, "evaluation.missing-metrics", "--against nothing"),
        ({"limit": 0}, "evaluation.invalid-limit", "--limit 0"),
        ({"limit": -1}, "evaluation.invalid-limit", "--limit -1"),
    ],
)
def test_impossible_options_are_refused_before_any_request(
    files: Files, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any, code: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with refuses(code, value):
        run(files, tmp_path / "out", **changes)
    assert asked == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"model": "nowhere"}, "--model nowhere"),
        ({"delimiter": "ab"}, "delimiter=ab"),
        ({"year_tolerance": -1}, "year_tolerance=-1"),
        ({"replicas": 0}, "--replicas 0"),
    ],
)
def test_invalid_values_are_refused_before_any_request(
    files: Files, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=value):
        run(files, tmp_path / "out", **changes)
    assert asked == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([ROWS[3]], "groundtruth_with_release_year"),
        ([*ROWS, ROWS[3] | {"sample_id": "b"}], r"row 4: `sample_id` .*\(row 1, 'b'\)"),
        ([ROWS[0], row("e", "x", ["Heat"], films={"Heat": "n/a"})], r"row 1: .*\('Heat', 'n/a'\)"),
    ],
)
def test_unscorable_data_is_refused_before_any_request(
    files: Files, asked: Asked, tmp_path: Path, rows: list[dict[str, Any]], problem: str
) -> None:
    write_rows(tmp_path / "data.parquet", rows)
    with pytest.raises(UserError, match=rf"data\.parquet: .*{problem}"):
        run(files, tmp_path / "out")
    out = tmp_path / "data.parquet" / "out"
    with refuses("evaluation.conflicting-options", f"--out {out}"):
        run(files, out)
    assert asked == []


BROKEN = [
    ROWS[0] | {"prompt": []},
    row("b", "space", ["Heat"]),  # b's id, again and again
    *(row(f"x{n}", "crime", ["Heat"], films={"Heat": "n/a"}) for n in range(7)),
    row("c", "crime", ["Heat"]),
]


def test_damaged_rows_are_all_named_or_left_out_and_counted(
    files: Files, asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(files, tmp_path / "whole")
    asked.clear()
    write_rows(Path(files["data"]), [*ROWS[:2], *BROKEN[:9], *ROWS[2:], BROKEN[9]])
    write_rows(Path(files["train"]), [*TRAIN, BROKEN[0]])
    with pytest.raises(UserError) as error:
        run(files, tmp_path / "out")
    text = str(error.value)
    assert "data.parquet: row 2: `prompt` " in text
    assert "data.parquet: rows 3, 13: `sample_id` " in text
    assert "data.parquet: rows 4, 5, 6, 7, 8, 9, 10: a ground-truth year " in text
    with pytest.raises(UserError, match=r"10 of 14 .*0\.7"):
        run(files, tmp_path / "out", skip_damaged=0.7)
    assert asked == []

    arguments = ["--out", str(tmp_path / "out"), "--num-items", "3", "--ks", "1", "3", "--skip-damaged", "0.8"]
    assert command.main([*arguments, *(part for name in files for part in (f"--{name}", files[name]))]) == 0
    printed = capsys.readouterr()
    assert "3 rows, 2 conversations, protocol paper" in printed.out
    assert "1 rows without ground truth left out; 10 damaged rows left out" in printed.out
    assert "10 damaged rows left out, named in damaged.jsonl:\n       7: a ground-truth year" in printed.err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["damaged"] == {"data": 10, "train": 1}
    assert metrics["results"] == json.loads((tmp_path / "whole" / "metrics.json").read_text())["results"]
    named = [json.loads(line) for line in (tmp_path / "out" / "damaged.jsonl").read_text().splitlines()]
    rows_by_file = {
        name: [entry["row"] for entry in named if entry["file"] == files[name]] for name in ("data", "train")
    }
    assert rows_by_file == {"data": [*range(2, 11), 13], "train": [2]}
    assert "evaluation.invalid-year" in {entry["code"] for entry in named}
    write_rows(Path(files["data"]), ROWS)
    write_rows(Path(files["train"]), TRAIN)
    assert run(files, tmp_path / "out", skip_damaged=0.8)["damaged"] == {"data": 0, "train": 0}
    assert not (tmp_path / "out" / "damaged.jsonl").exists()


def test_catalog_missing_truths_raises_a_warning_or_is_refused(files: Files, asked: Asked, tmp_path: Path) -> None:
    other = write_catalog(tmp_path / "other.parquet", {"Alien": 1979})
    (warning,) = run(files, tmp_path / "out", catalog=other, train=None)["warnings"]
    assert "2 of 3 ground truths" in warning  # Heat, twice
    assert run(files, tmp_path / "out2")["warnings"] == []
    write_catalog(Path(other), {"Casablanca": 1942})
    with refuses("evaluation.wrong-catalog", "3 of 3", other):
        run(files, tmp_path / "out3", catalog=other, train=None)


# ---- the command


def test_the_command_replaces_its_own_results_alone(
    files: Files, asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", files["data"], "--catalog", files["catalog"], "--out", str(tmp_path / "out")]
    model_arguments = [*arguments, "--num-items", "3", "--delimiter", r"\n", "--model", files["model"]]
    assert command.main(model_arguments) == 0
    printed = capsys.readouterr()
    assert "no --train" in printed.err
    assert "Recall@3" in printed.out  # none of 5, 10, 15, 20 fits lists of three
    content_before = (tmp_path / "out" / "rows.parquet").read_bytes()
    baseline_arguments = [*arguments, "--num-items", "3", "--train", files["data"]]
    assert command.main(baseline_arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: --out {tmp_path / 'out'}: ")
    assert f"model was '{files['model']}' and is None" in message
    assert message.endswith("[evaluation.other-evaluation]\n")
    assert (tmp_path / "out" / "rows.parquet").read_bytes() == content_before
    assert command.main(model_arguments) == 0
    assert command.main([*baseline_arguments, "--overwrite"]) == 0
    assert not (tmp_path / "out" / "rows.parquet").exists()
    assert len(asked) == 1


def test_model_that_cannot_write_the_titles_is_refused_early(
    files: Files, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recipes.evaluation.setup.load_tokenizer", load_tokenizer)
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "intermediate_size": 32}
    model = make_tiny_model(tmp_path / "tiny", ["Heat (1995)\n" * 40], vocab_size=300, **sizes)
    run(files, tmp_path / "sound", model=model)
    assert len(asked) == 1
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    japanese = {"<none>" if token == "ä" else token: id_ for token, id_ in content["model"]["vocab"].items()}
    file.write_text(json.dumps(content | {"model": content["model"] | {"vocab": japanese}}))
    catalog = write_catalog(tmp_path / "japanese.parquet", {"七人の侍": 1954, "七人": 1960, "Heat": 1995})
    with pytest.raises(UserError, match=r"--model .*'七人の侍"):
        run(files, tmp_path / "out", model=model, catalog=catalog)
    file.unlink()
    with pytest.raises(UserError, match=r"--model .*tokenizer\.json"):
        run(files, tmp_path / "out", model=model)
    assert len(asked) == 1
