import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data.schema import CATALOG_SCHEMA, RL_SCHEMA, prompt_text
from convrec.errors import UserError
from convrec.generation import answers as generations
from convrec.generation.offline import Answer
from data_prep.sample import write_sample
from recipes import evaluate as recipe
from recipes.evaluation.examples import examples
from tests.recipes.conftest import generated

CATALOG = [("Alien", 1979), ("Heat", 1995), ("Toy Story", 1995), ("Jaws", 1975)]
LISTS = {
    "space": "Alien (1979)\nJaws (1975)\nHeat (1995)",
    "crime": "Toy Story (1995)\nHeat (1995)\nHeat (1995)\nNot a film",
}


def row(
    sample_id: str, conversation: str, truth: list[tuple[str, str]], seen: list[str] | None = None
) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": prompt_text(f"USER: {conversation}\n", 3)}],
        "seen_titles": seen or [],
        "groundtruth_with_release_year": [list(pair) for pair in truth],
        "sample_id": sample_id,
    }


ROWS = [
    row("a", "space", [("Alien", "1979")]),
    row("b", "space", [("Heat", "1995")]),  # the same conversation, another user's answer
    row("c", "crime", [("Heat", "1995")], seen=["Toy Story"]),
    row("d", "crime", []),
]


@pytest.fixture
def files(tmp_path: Path, sound_model: Callable[..., Path]) -> dict[str, Path]:
    """A split, a catalog, a training split in which Heat is the most popular, and a folder that passes for a model."""
    model = sound_model(tmp_path / "model")
    paths = {name: tmp_path / f"{name}.parquet" for name in ("data", "catalog", "train")}
    pq.write_table(pa.Table.from_pylist(ROWS, RL_SCHEMA), paths["data"])
    train = [row("t1", "x", [("Heat", "1995")]), row("t2", "y", [("Heat", "1995"), ("Jaws", "1975")])]
    pq.write_table(pa.Table.from_pylist(train, RL_SCHEMA), paths["train"])
    catalog = [{"title": title, "year": year} for title, year in CATALOG]
    pq.write_table(pa.Table.from_pylist(catalog, CATALOG_SCHEMA), paths["catalog"])
    return paths | {"model": model}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Answers from LISTS in vLLM's place; gathers how many prompts each call was given."""
    calls: list[int] = []

    def fake_generate(model: str, prompts: list[Any], *, on_batch: Any, **settings: object) -> list[Answer]:
        calls.append(len(prompts))
        texts = [next(text for word, text in LISTS.items() if word in prompt[0]["content"]) for prompt in prompts]
        on_batch(generated(*texts))
        return []

    monkeypatch.setattr(generations, "generate", fake_generate)
    return calls


def run(files: dict[str, Path], out: Path, **changes: Any) -> dict[str, Any]:
    return recipe.evaluate(**({**files, "out": out, "num_items": 3, "ks": (1, 3), "progress": False} | changes))


def test_each_distinct_prompt_is_generated_once_and_scored_once_a_row(
    files: dict[str, Path], asked: list[int], tmp_path: Path
) -> None:
    metrics = run(files, tmp_path / "out")
    assert asked == [2]
    summary = metrics["results"]["paper"]["model"]
    assert (summary["n"], summary["num_contexts"], summary["without_ground_truth"]) == (3, 2, 1)
    # a: Alien at rank 1. b: Heat at rank 3. c: seen Toy Story and the unparsable line go, Heat moves up to rank 1.
    assert summary["recall@1"]["mean"] == pytest.approx(2 / 3)
    assert summary["recall@3"]["mean"] == pytest.approx(1.0)
    assert summary["ndcg@3"]["mean"] == pytest.approx((1 + 1 / math.log2(4) + 1) / 3)
    assert summary["list_length_errors"] == 1  # c has four lines
    assert summary["repeats_per_list"] == pytest.approx(1 / 3)
    assert summary["lists_with_repeats"] == 1


def test_popularity_stands_beside_the_model(files: dict[str, Path], asked: list[int], tmp_path: Path) -> None:
    metrics = run(files, tmp_path / "out")
    popularity = metrics["results"]["paper"]["popularity"]
    # Heat, Jaws: rows b and c want Heat, which is first; a wants Alien.
    assert popularity["recall@1"]["mean"] == pytest.approx(2 / 3)
    assert popularity["distinct_items"] == 2
    text = recipe.format_metrics(metrics)
    assert "popularity" in text
    assert "Recall@3" in text
    assert "1 rows without ground truth left out" in text


def test_lists_that_are_all_of_another_length_are_warned_about(
    files: dict[str, Path], asked: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word in LISTS:
        monkeypatch.setitem(LISTS, word, "Heat (1995)\nJaws (1975)")
    (warning,) = run(files, tmp_path / "out")["warnings"]
    assert warning.startswith("4 of 4 lists have 2 items, not 3: ")


def test_further_protocols_are_scored_from_the_same_lists(
    files: dict[str, Path], asked: list[int], tmp_path: Path
) -> None:
    metrics = run(files, tmp_path / "out", protocols=("paper", "strict"))
    assert asked == [2]
    strict = metrics["results"]["strict"]["model"]
    assert strict["recall@1"]["mean"] == pytest.approx(1 / 3)  # positions kept: c's Heat stays at rank 2
    columns = pq.read_table(tmp_path / "out" / "rows.parquet").column_names
    assert {"recall@1", "strict/recall@1", "text", "prompt_id", "sample_id"} <= set(columns)


def test_generations_are_reused_until_weights_or_settings_change(
    files: dict[str, Path], asked: list[int], tmp_path: Path, sound_model: Callable[..., Path]
) -> None:
    out = tmp_path / "out"
    first = run(files, out, limit=2)
    assert asked == [1]
    run(files, out)  # one more prompt, the other is known
    assert asked == [1, 1]
    again = run(files, out)
    assert asked == [1, 1]
    assert again["generation"]["generated"] == 0
    run(files, out, max_response_length=77)
    assert asked == [1, 1, 2]
    sound_model(files["model"], weight=0.25)
    run(files, out, max_response_length=77)
    assert asked == [1, 1, 2, 2]
    assert first["results"]["paper"]["model"]["n"] == 2
    copy = sound_model(tmp_path / "copy", weight=0.25)  # the contents count, neither place nor time
    run(files, out, max_response_length=77, model=copy)
    assert asked == [1, 1, 2, 2]


def test_files_hold_what_was_returned(files: dict[str, Path], asked: list[int], tmp_path: Path) -> None:
    out = tmp_path / "out"
    metrics = run(files, out, limit=1)
    read = json.loads((out / "metrics.json").read_text())  # a standard error of one conversation is null, not NaN
    assert read["results"]["paper"]["model"]["recall@1"] == {"mean": 1.0, "se": None}
    assert math.isnan(metrics["results"]["paper"]["model"]["recall@1"]["se"])
    rows = pq.read_table(out / "rows.parquet").to_pylist()
    assert [(r["sample_id"], r["recall@1"], r["text"]) for r in rows] == [("a", 1.0, LISTS["space"])]


def test_another_models_answers_are_replaced_with_a_word_and_a_seed_does_not_count(
    files: dict[str, Path],
    asked: list[int],
    tmp_path: Path,
    sound_model: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(files, tmp_path / "out")
    run(files, tmp_path / "out", seed=1)
    assert asked == [2]
    assert capsys.readouterr().err == ""
    sound_model(files["model"], weight=0.25)
    run(files, tmp_path / "out")
    assert "generations.parquet: replacing 2 answers of another model or with other settings" in capsys.readouterr().err


def test_an_interrupted_evaluation_goes_on_where_it_was(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []

    def batches_of_one(model: str, prompts: list[Any], *, on_batch: Any, **_: object) -> None:
        given.append([prompt[0]["content"].split("USER: ")[1].strip() for prompt in prompts])
        for place, name in enumerate(given[-1]):
            if len(given) == 1 and place == 1:
                raise KeyboardInterrupt
            on_batch([(place, generated(f"{name} (1995)")[0][1])])

    monkeypatch.setattr(generations, "generate", batches_of_one)
    with pytest.raises(KeyboardInterrupt):
        run(files, tmp_path / "out")
    assert run(files, tmp_path / "out")["generation"]["generated"] == 1
    assert given == [["space", "crime"], ["crime"]]
    rows = pq.read_table(tmp_path / "out" / "rows.parquet").to_pylist()
    assert [row["text"] for row in rows] == ["space (1995)", "space (1995)", "crime (1995)", "crime (1995)"]


def test_a_runs_checkpoint_is_asked_and_scored_as_it_was_trained(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound_model: Callable[..., Path]
) -> None:
    asked_with: list[object] = []

    def answer(model: str, prompts: list[Any], *, on_batch: Any, **settings: Any) -> None:
        asked_with.append(settings.get("chat_template_kwargs"))
        on_batch(generated(*["Jaws (1975)|Heat (1998)"] * len(prompts)))

    monkeypatch.setattr(generations, "generate", answer)
    folder = tmp_path / "run"
    sound_model(folder / "global_step_4" / "actor" / "huggingface")
    (folder / "latest_checkpointed_iteration.txt").write_text("4")
    (folder / "config.yaml").write_text(
        "convrec: {num_items: 2, delimiter: '|', matching: exact, year_tolerance: 3, fuzzy_cutoff: 80}\n"
        "data: {apply_chat_template_kwargs: {enable_thinking: true}}\n"
    )
    unsaid = {"num_items": None, "ks": None, "model": folder, "protocols": ("strict",)}
    metrics = run(files, tmp_path / "out", **unsaid)
    trained = {"num_items": 2, "delimiter": "|", "matching": "exact", "year_tolerance": 3, "fuzzy_cutoff": 80}
    assert {name: metrics["settings"][name] for name in trained} == trained
    assert asked_with == [{"enable_thinking": True}]
    model = metrics["results"]["strict"]["model"]
    assert metrics["settings"]["ks"] == [2]
    assert (model["recall@2"]["mean"], model["list_length_errors"]) == (pytest.approx(2 / 3), 0)  # Heat is b's and c's
    assert examples({"run": tmp_path / "out"})[0].lists["run"][1].marks == ("hit",)

    for place in (folder / "global_step_4", folder / "global_step_4" / "actor" / "huggingface"):
        assert run(files, tmp_path / "out", **(unsaid | {"model": place}))["settings"]["delimiter"] == "|"
    # what is given counts before the run's: Heat (1998) is three years from the ground truth, and now too far
    closer = run(files, tmp_path / "out", **unsaid, year_tolerance=2)
    assert closer["results"]["strict"]["model"]["recall@2"]["mean"] == 0
    # of no run, the usual: one line is one item
    lines = run(files, tmp_path / "out2", num_items=None)["settings"]
    assert (lines["num_items"], lines["delimiter"], lines["matching"]) == (20, "\n", "fuzzy")
    assert asked_with[-1] is None
    # a sweep's start model is asked as the swept run is, also when it is a checkpoint of another
    assert run(files, tmp_path / "out2", run=folder)["settings"]["delimiter"] == "|"
    assert run(files, tmp_path / "out2", model=folder, run=tmp_path)["settings"]["delimiter"] == "\n"
    with pytest.raises(UserError, match="delimiter=ab: expected one ASCII character"):
        run(files, tmp_path / "out2", delimiter="ab")


def test_protocol_reference_has_the_reference_matcher_unless_told_otherwise(
    files: dict[str, Path], asked: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LISTS, "space", "alien (1979)")  # another case: not in the reference's catalog
    recall = {}
    for matching in (None, "fuzzy"):
        metrics = run(files, tmp_path / "out", protocols=("paper", "reference"), matching=matching)
        recall[matching] = [metrics["results"][name]["model"]["recall@1"]["mean"] for name in ("paper", "reference")]
        assert f"protocol reference, matching {matching or 'reference'}" in recipe.format_metrics(metrics)
    # a: Alien at rank 1 but for the reference; c: Heat moves up to rank 1
    assert recall == {None: pytest.approx([2 / 3, 1 / 3]), "fuzzy": pytest.approx([2 / 3, 2 / 3])}


def test_probes_are_the_list_for_no_conversation_and_for_another_one(
    files: dict[str, Path], asked: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LISTS, "", "Heat (1995)")  # of the instruction alone
    metrics = run(files, tmp_path / "out", probe=True)
    assert asked == [3]
    results = metrics["results"]["paper"]
    recall = {name: results[name]["recall@1"]["mean"] for name in ("empty conversation", "another's conversation")}
    # a wants Alien, b and c want Heat. The other's: a and b get crime's list, in which Toy Story is first; c gets Alien
    assert recall == {"empty conversation": pytest.approx(2 / 3), "another's conversation": 0.0}
    minus = metrics["minus"]["empty conversation"]
    # distinct items Alien, Jaws, Heat, Toy Story of four, against Heat alone
    assert (minus["coverage"]["mean"], minus["coverage"]["n"]) == (0.75, 3)
    assert minus["recall@3"]["mean"] == pytest.approx(1 - 2 / 3)
    rows = pq.read_table(tmp_path / "out" / "rows.parquet").to_pylist()
    assert [row["recommended"] for row in rows[::2]] == [[0, 3, 1], [2, 1]]
    with pytest.raises(UserError, match="has one alone"):
        run(files, tmp_path / "alone", probe=True, limit=1)
    assert asked == [3]


def test_paired_differences_beyond_accuracy_need_the_same_training_rows(
    files: dict[str, Path], asked: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(files, tmp_path / "before")
    monkeypatch.setitem(LISTS, "space", "Heat (1995)")
    metrics = run(files, tmp_path / "after", against=tmp_path / "before", max_response_length=9)
    # before Heat 2, Jaws 1, Alien 0 of two training rows: 0, 1, 1 bits, mean 2/3; after Heat alone: 0. c: both 0.5
    assert metrics["paired"]["novelty"]["mean"] == pytest.approx(-2 / 3 * 2 / 3)
    assert metrics["paired"]["coverage"]["mean"] == -0.5
    assert metrics["slices"]["wanted"]["1"]["recall@3 gain"]["mean"] == pytest.approx(-1 / 3)
    assert "catalog coverage    -0.5000" in recipe.format_metrics(metrics)
    without = run(files, tmp_path / "after", against=tmp_path / "before", max_response_length=9, train=None)
    assert "novelty" not in without["paired"]
    assert without["paired"]["coverage"]["mean"] == -0.5


def test_only_evaluations_that_were_scored_alike_are_compared(
    files: dict[str, Path], asked: list[int], tmp_path: Path
) -> None:
    before = tmp_path / "before"
    run(files, before, train=None)
    copy = tmp_path / "elsewhere" / "catalog.parquet"
    copy.parent.mkdir()
    copy.write_bytes(files["catalog"].read_bytes())
    assert run(files, tmp_path / "after", against=before, catalog=copy)["paired"]["recall@1"]["mean"] == 0
    pq.write_table(pa.Table.from_pylist([{"title": "Heat", "year": 1995}], CATALOG_SCHEMA), copy)
    for changes, unlike in (
        ({"matching": "exact"}, "matching fuzzy, this with exact"),
        ({"num_items": 4}, "num_items 3, this with 4"),
        ({"year_tolerance": 1}, "year_tolerance 2, this with 1"),
        ({"protocols": ("strict",)}, "protocol paper, this with strict"),
        ({"ks": (1, 2)}, r"ks \[1, 3\], this with \[1, 2\]"),
        ({"catalog": copy, "train": None}, "catalog catalog.parquet .SHA-256 .*, this with catalog.parquet"),
    ):
        with pytest.raises(UserError, match=f"--against .*: it was scored with {unlike}.*; evaluate both alike"):
            run(files, tmp_path / "after", against=before, **changes)
    with pytest.raises(UserError, match="also --out"):
        run(files, before, against=tmp_path / "elsewhere" / ".." / "before")

    # an evaluation that did not note contents, year_tolerance and fuzzy_cutoff is compared by the files' places
    metrics = json.loads((before / "metrics.json").read_text())
    for name in ("sha256", "year_tolerance", "fuzzy_cutoff"):
        del metrics["settings"][name]
    (before / "metrics.json").write_text(json.dumps(metrics))
    assert run(files, tmp_path / "after", against=before)["paired"]["n"] == 3
    with pytest.raises(UserError, match=r"it was scored with catalog /.*, this with /"):
        run(files, tmp_path / "after", against=before, catalog=copy)
    (before / "metrics.json").write_text('{"settings": {"mod')
    with pytest.raises(UserError, match=r"metrics\.json: cut off"):
        run(files, tmp_path / "after", against=before)


def test_paired_comparison_is_by_row(
    files: dict[str, Path], asked: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(files, tmp_path / "before")
    monkeypatch.setitem(LISTS, "space", "Heat (1995)\nJaws (1975)\nAlien (1979)")  # a loses rank 1, b wins it
    metrics = run(files, tmp_path / "after", against=tmp_path / "before")
    assert metrics["paired"]["n"] == 3
    assert metrics["paired"]["recall@1"]["mean"] == pytest.approx(0.0)
    assert "rows paired" in recipe.format_metrics(metrics)

    evaluations = {"sft": tmp_path / "before", "rank_grpo": tmp_path / "after"}
    chosen = examples(evaluations)
    # NDCG@3 before -> after: b 0.5 -> 1, c 1 -> 1, a 1 -> 0.5
    assert [example.label for example in chosen] == [
        "the largest gain (NDCG@3 +0.50); the best of rank_grpo (NDCG@3 1.00)",
        "in between (NDCG@3 +0.00)",
        "the largest loss (NDCG@3 -0.50); the worst of rank_grpo (NDCG@3 0.50)",
    ]
    only_gain = [example.label.split(" (")[0] for example in examples(evaluations, count=1)]
    assert only_gain == ["the largest gain", "the worst of rank_grpo"]
    assert chosen[0].lists["rank_grpo"][0].marks == ("hit",)
    assert chosen[0].conversation == "USER: space\n"


def test_a_list_is_shown_split_at_the_delimiter_it_was_scored_with(
    files: dict[str, Path], asked: list[int], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    metrics = run(files, out)
    rows = pq.read_table(out / "rows.parquet").to_pylist()
    pq.write_table(
        pa.Table.from_pylist([row | {"text": row["text"].replace("\n", "; ")} for row in rows]), out / "rows.parquet"
    )
    metrics["settings"]["delimiter"] = ";"
    (out / "metrics.json").write_text(json.dumps(metrics))
    best = examples({"model": out})[0]
    assert [line.text for line in best.lists["model"]] == ["Alien (1979)", "Jaws (1975)", "Heat (1995)"]


def test_bad_input_is_refused_before_generating(files: dict[str, Path], asked: list[int], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"--model .*nowhere: no such folder"):
        run(files, out, model=tmp_path / "nowhere")
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.Table.from_pylist([ROWS[3]], RL_SCHEMA), empty)
    with pytest.raises(UserError, match="no row has ground truth"):
        run(files, out, data=empty)
    with pytest.raises(UserError, match="--ks 5"):
        run(files, out, ks=(5,))
    with pytest.raises(UserError, match=r"no metrics\.json"):
        run(files, out, against=tmp_path / "nothing")
    pq.write_table(pa.Table.from_pylist([*ROWS, {**ROWS[3], "sample_id": "b"}], RL_SCHEMA), empty)
    with pytest.raises(UserError, match=r"empty\.parquet: row 4: `sample_id` is that of an earlier row \(row 1, 'b'\)"):
        run(files, out, data=empty)
    pq.write_table(pa.Table.from_pylist([ROWS[0], row("e", "x", [("Heat", "n/a")])], RL_SCHEMA), empty)
    with pytest.raises(UserError, match=r"empty\.parquet: row 1: a ground-truth year .* \('Heat', 'n/a'\); write the"):
        run(files, out, data=empty)
    for limit in (0, -1):
        with pytest.raises(UserError, match=f"--limit {limit}: at least 1 row"):
            run(files, out, limit=limit)
    with pytest.raises(UserError, match="year_tolerance=-1: expected an integer of at least 0"):
        run(files, out, year_tolerance=-1)
    with pytest.raises(UserError, match=r"--out .*data\.parquet/out: a file is in its place"):
        run(files, files["data"] / "out")
    assert asked == []
    assert not out.exists()


BROKEN = [
    ROWS[0] | {"prompt": []},
    row("b", "space", [("Heat", "1995")]),  # b's id, again and again
    *(row(f"x{n}", "crime", [("Heat", "n/a")]) for n in range(7)),
    row("c", "crime", [("Heat", "1995")]),
]


def test_damaged_rows_are_all_named_or_left_out_and_counted(
    files: dict[str, Path], asked: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(files, tmp_path / "whole")
    asked.clear()
    rows = [*ROWS[:2], *BROKEN[:9], *ROWS[2:], BROKEN[9]]
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), files["data"])
    content = files["data"].read_bytes()
    with pytest.raises(UserError) as told:
        run(files, tmp_path / "out")
    text = str(told.value)
    assert "data.parquet: row 2: `prompt` is not exactly one user message; write [" in text
    assert "data.parquet: rows 3, 13: `sample_id` is that of an earlier row (row 1, 'b'); give each row its own" in text
    assert "data.parquet: rows 4, 5, 6, 7, 8, 9, 10: a ground-truth year that is no whole number such as 1999" in text
    with pytest.raises(UserError, match=r"10 of 14 rows are damaged, more than the share of 0\.7 that may"):
        run(files, tmp_path / "out", skip_damaged=0.7)
    assert asked == []
    assert files["data"].read_bytes() == content

    arguments = ["--out", str(tmp_path / "out"), "--num-items", "3", "--ks", "1", "3", "--skip-damaged", "0.8"]
    arguments += [part for name in ("model", "data", "catalog", "train") for part in (f"--{name}", str(files[name]))]
    assert recipe.main(arguments) == 0
    said = capsys.readouterr()
    assert "3 rows, 2 conversations, protocol paper" in said.out
    assert "1 rows without ground truth left out; 10 damaged rows left out" in said.out
    assert "10 damaged rows left out, named in damaged.jsonl:\n       7: a ground-truth year" in said.err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["damaged"] == {"data": 10, "train": 0}
    assert metrics["results"] == json.loads((tmp_path / "whole" / "metrics.json").read_text())["results"]
    assert whole["damaged"] == {"data": 0, "train": 0}
    named = [json.loads(line) for line in (tmp_path / "out" / "damaged.jsonl").read_text().splitlines()]
    assert [entry["row"] for entry in named] == [*range(2, 11), 13]
    assert {entry["file"] for entry in named} == {str(files["data"])}
    pq.write_table(pa.Table.from_pylist(ROWS, RL_SCHEMA), files["data"])
    run(files, tmp_path / "out", skip_damaged=0.8)
    assert not (tmp_path / "out" / "damaged.jsonl").exists()


def test_text_that_is_no_utf8_is_a_damaged_row(files: dict[str, Path], asked: list[int], tmp_path: Path) -> None:
    for name, text in (("data", b"crime"), ("train", b"Jaws")):
        table = pq.read_table(files[name])
        pq.write_table(table, files[name], compression="none", use_dictionary=False, write_statistics=False)
        content = files[name].read_bytes()
        files[name].write_bytes(content.replace(text, b"\xff" + text[1:], 1))
    with pytest.raises(UserError, match=r"data\.parquet: row 2: text that is no UTF-8; write the row again"):
        run(files, tmp_path / "out")
    metrics = run(files, tmp_path / "out", skip_damaged=0.5)
    assert metrics["damaged"] == {"data": 1, "train": 1}
    assert metrics["results"]["paper"]["model"]["n"] == 2
    assert len(metrics["warnings"]) == 2


def test_a_catalog_without_a_tenth_of_the_ground_truth_is_warned_about_and_a_foreign_one_refused(
    files: dict[str, Path], asked: list[int], tmp_path: Path
) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.Table.from_pylist([{"title": "Alien", "year": 1979}], CATALOG_SCHEMA), other)
    (warning,) = run(files, tmp_path / "out", catalog=other, train=None)["warnings"]
    assert "2 of 3 ground truths" in warning  # Heat, twice
    assert run(files, tmp_path / "out2")["warnings"] == []
    asked.clear()
    pq.write_table(pa.Table.from_pylist([{"title": "Casablanca", "year": 1942}], CATALOG_SCHEMA), other)
    with pytest.raises(UserError, match=r"3 of 3 ground truths .* another data set's catalog"):
        run(files, tmp_path / "out3", catalog=other, train=None)
    assert asked == []


def test_the_command_prints_user_errors_without_a_traceback(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", "nowhere/at/all", "--data", str(files["data"]), "--catalog", str(files["catalog"])]
    assert recipe.main([*arguments, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_the_command_replaces_its_own_results_alone(
    files: dict[str, Path], asked: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--out", str(tmp_path / "out"), "--num-items", "3"]
    arguments += [part for name in ("data", "catalog") for part in (f"--{name}", str(files[name]))]
    of_model = [*arguments, "--model", str(files["model"]), "--baselines"]
    assert recipe.main(of_model) == 0
    kept = (tmp_path / "out" / "rows.parquet").read_bytes()
    of_copy = [*arguments, "--baselines", "copy"]
    assert recipe.main(of_copy) == 2
    assert (
        f"holds the evaluation of model {files['model']}; give another --out, or --overwrite" in capsys.readouterr().err
    )
    assert (tmp_path / "out" / "rows.parquet").read_bytes() == kept
    assert recipe.main(of_model) == 0
    assert recipe.main([*of_copy, "--overwrite"]) == 0
    assert not (tmp_path / "out" / "rows.parquet").exists()


def test_baselines_that_have_no_training_rows_are_said_to_be_left_out(
    files: dict[str, Path], asked: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--out", str(tmp_path / "out"), "--num-items", "3", "--delimiter", r"\n"]
    arguments += [part for name in ("model", "data", "catalog") for part in (f"--{name}", str(files[name]))]
    assert recipe.main(arguments) == 0
    said = capsys.readouterr()
    assert said.err == "no --train: left out the baseline popularity\n"
    assert "Recall@3" in said.out  # none of 5, 10, 15, 20 fits lists of three
    assert asked == [2]


@pytest.mark.e2e
def test_a_tiny_model_is_evaluated_with_vllm(tmp_path: Path) -> None:
    from recipes.tiny_model import make_tiny_model

    write_sample(tmp_path / "data", counts={"train": 60, "validation": 4, "test": 12})
    texts = [row["prompt"][0]["content"] for row in pq.read_table(tmp_path / "data" / "train.parquet").to_pylist()]
    model = make_tiny_model(tmp_path / "model", texts, vocab_size=600, hidden_size=64, num_heads=2, num_kv_heads=1)
    metrics = recipe.evaluate(
        model=model,
        data=tmp_path / "data" / "test.parquet",
        catalog=tmp_path / "data" / "catalog.parquet",
        train=tmp_path / "data" / "train.parquet",
        out=tmp_path / "out",
        max_response_length=16,
        progress=False,
    )
    results = metrics["results"]["paper"]
    assert metrics["generation"]["generated"] == results["model"]["num_contexts"]
    assert results["model"]["n"] == 12
    assert results["popularity"]["ndcg@20"]["mean"] > results["model"]["ndcg@20"]["mean"]  # the model is untrained
    assert metrics["warnings"] == []
