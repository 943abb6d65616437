"""Your own data set: how it is read and written, and how damage is reported."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.data.schema import format_prompt, get_group_id, parse_conversation_id
from convrec.data.validation import validate_rl_table, validate_sft_table
from convrec.lists.metrics import evaluate_row
from convrec.lists.ranks import parse_items
from convrec.titles.catalog import load_catalog
from convrec.titles.matching import Matcher
from data_prep.own import convert_own, format_summary, main
from data_prep.own_data.splits import SplitRule
from reward.catalog_match import compute_score
from tests.user_errors import refuses

FILMS = [{"title": "Heat", "year": 1995, "plot": "cops"}, {"title": "M", "year": "1931"}, {"title": "Up", "year": 2009}]
TURNS = [
    {"role": "user", "content": "I like Heat (1995)."},
    {"role": "assistant", "content": "What else?"},
    {"role": "user", "content": "Old ones,\nplease."},
]
TEXT = "USER: I like Heat (1995).\nSYSTEM: What else?\nUSER: Old ones,\nplease.\n"


def line(**changes) -> dict:
    return {"conversation": TURNS, "ground_truth": [["M", 1931]], "seen": ["Heat (1995)"]} | changes


@pytest.fixture
def files(tmp_path):
    """files(rows, catalog) -> keyword arguments of convert_own; rows and catalog as dicts or as the file's text."""

    def write(rows, catalog=FILMS, suffix=".jsonl"):
        paths = []
        for name, content in (("dialogues", rows), ("catalog", catalog)):
            path = tmp_path / f"{name}{suffix if isinstance(content, str) else '.jsonl'}"
            text = content if isinstance(content, str) else "".join(json.dumps(entry) + "\n" for entry in content)
            path.write_text(text, encoding="utf-8")
            paths.append(path)
        return {"conversations": [paths[0]], "catalog": paths[1], "out": tmp_path / "out"}

    return write


@pytest.fixture
def converted(files):
    """converted(rows, catalog, suffix, **options of convert_own) -> (OUT, its summary)."""

    def convert(*contents, **options):
        inputs = files(*contents)
        return inputs["out"], convert_own(**inputs, **options)

    return convert


def read(out, name):
    return pq.read_table(out / f"{name}.parquet").to_pylist()


def test_a_line_becomes_a_row_of_each_table_it_has_content_for(converted):
    rows = [
        line(demonstration=["Up (2009)", {"title": "M", "year": "1931"}], split="train", conversation_id=7),
        line(ground_truth=[], demonstration=["Up (2009)"], split="train", id="only a demonstration"),
        line(ground_truth=["M (1931)", {"title": "Up", "year": "2009"}, ["M", "1931"]], split="validation", seen=None),
        line(conversation=TEXT, split="test", extra={"source": "x"}, conversation_id="another"),
    ]
    rows = [row | {"conversation_id": f"c{n}"} | row for n, row in enumerate(rows)]
    out, summary = converted(rows, num_items=2)
    (train,) = read(out, "train")
    assert train == {
        "prompt": [{"content": format_prompt(TEXT, 2), "role": "user"}],
        "seen_titles": ["Heat"],
        "groundtruth_with_release_year": [["M", "1931"]],
        "sample_id": train["sample_id"],
        "id": None,
        "exposure": None,
    }
    assert parse_conversation_id(train["sample_id"]) == "7"
    sft = read(out, "sft_train")
    assert sft[0] == train | {"completion": [{"content": "Up (2009)\nM (1931)", "role": "assistant"}]}
    assert [parse_conversation_id(row["sample_id"]) for row in sft] == ["7", "c1"]
    assert [row["id"] for row in sft] == [None, "only a demonstration"]
    (validation,) = read(out, "validation")
    assert validation["groundtruth_with_release_year"] == [["M", "1931"], ["Up", "2009"]]  # the duplicate is dropped
    assert validation["seen_titles"] == []
    assert read(out, "test")[0]["prompt"] == train["prompt"]
    assert not (out / "sft_validation.parquet").exists()
    assert load_catalog(out / "catalog.parquet").years == [1995, 1931, 2009]
    assert pq.read_table(out / "catalog.parquet")["plot"].to_pylist() == ["cops", None, None]
    for name in ("train", "validation", "test"):
        assert validate_rl_table(out / f"{name}.parquet") == (1, [])
    assert validate_sft_table(out / "sft_train.parquet").rows == 2
    assert json.loads((out / "summary.json").read_text()) == summary
    assert summary["rows"] == {
        "read": 4,
        "rows_whose_text_is_in_another_split": 2,  # validation and test have train's text
        "of_no_use_in_their_split": 0,
        "repeated_ground_truths_taken_out": 1,
        "ground_truths_already_seen": 0,
        "seen_titles_outside_catalog": 0,
        "short_demonstrations": 1,
        "demonstrated_items_outside_catalog": 0,
    }


def test_csv_gives_the_same_rows(converted):
    dialogues = (
        "conversation_id,conversation,ground_truth,seen,demonstration,time\r\n"
        '7,"USER: I like Heat (1995).\r\nSYSTEM: What else?\r\nUSER: Old ones,\r\nplease.","M (1931)","Heat | Nine",'
        '"Up (2009) | M (1931)",2022-10-31\r\n'
        "\r\n"
        "8,USER: hi,M (1931),,,2022-11-01T00:00:00+01:00\r\n"
    )
    out, _ = converted("\ufeff" + dialogues, 'title,year,plot\n"Heat",1995,cops\nM,1931,\nUp,2009,\n', ".csv")
    first, second = read(out, "train")
    assert first["prompt"][0]["content"] == format_prompt(TEXT)
    assert first["seen_titles"] == ["Heat", "Nine"]
    assert second["groundtruth_with_release_year"] == [["M", "1931"]]
    assert read(out, "sft_train")[0]["completion"][0]["content"] == "Up (2009)\nM (1931)"
    assert pq.read_table(out / "catalog.parquet")["plot"].to_pylist() == ["cops", None, None]


def test_items_without_years_go_through_reward_and_evaluation(converted):
    books = [{"title": "Dune"}, {"title": "Ubik", "year": None}, {"title": "Emma (annotated)", "year": ""}]
    rows = [
        line(ground_truth=["Dune", ["Emma (annotated)"]], seen=["Ubik"], demonstration=["Dune", {"title": "Ubik"}]),
        line(ground_truth=[{"title": "Ubik"}], seen=[]),
    ]
    out, summary = converted(rows, books, item="book", num_items=3)
    assert summary["catalog"] == {"items": 3, "dated": False, "never_matched": [], "merged": []}
    assert summary["files"]["train"]["outside_catalog"]["mentions"] == 0
    assert validate_rl_table(out / "train.parquet", dated=False) == (2, [])
    assert load_catalog(out / "catalog.parquet").problems == ()
    first = read(out, "train")[0]
    assert first["prompt"][0]["content"] == format_prompt(TEXT, 3, "book", dated=False)
    assert first["groundtruth_with_release_year"] == [["Dune", ""], ["Emma (annotated)", ""]]
    assert read(out, "sft_train")[0]["completion"][0]["content"] == "Dune\nUbik"

    response = "1. Ubik\n2. Emma (annotated)\n3. Dune"
    truth = {"groundtruth": first["groundtruth_with_release_year"], "seen": first["seen_titles"]}
    scored = compute_score("", response, truth, catalog_path=str(out / "catalog.parquet"), num_items=3)
    assert scored["rank_returns"] == [0, 1, 1]  # Ubik was seen
    matcher = Matcher(load_catalog(out / "catalog.parquet"))
    items = parse_items(response, dated=matcher.catalog.dated)
    row = evaluate_row(items, truth["groundtruth"], truth["seen"], matcher, ks=(2,))
    assert (row["recall@2"], row["ndcg@2"]) == (1, 1)


def test_titles_that_a_list_cannot_hold_are_reported(converted):
    books = [{"title": "1. FC Köln"}, {"title": "**"}, {"title": "1984"}, {"title": '"Dune"'}]
    _, summary = converted([line(ground_truth=["1984"])], books, item="book")
    # quotes fold away, so "Dune" is found; the number in front is a list's number
    assert summary["catalog"]["never_matched"] == [
        "row 0: '1. FC Köln' is read as 'FC Köln'",
        "row 1: '**' is read as None",
    ]


DECEMBER = 1669852800  # 2022-12-01
DATES = ("2022-10-01", "2022-10-31T23:59:59", "2022-11-01", DECEMBER, "2022-12-24T00:00:00+00:00")


def test_splits_by_dates_are_the_papers(converted):
    rows = [line(time=time, conversation_id=f"c{n}", id=n) for n, time in enumerate(DATES)]
    rows.append(line(time="2022-10-02", conversation_id="c3", id="earlier, of the December conversation"))
    out, summary = converted(rows, rule=SplitRule("2022-11-01", "2022-12-01"))
    names = [[row["id"] for row in read(out, split)] for split in ("train", "validation", "test")]
    assert names == [["0", "1"], ["2"], ["3", "4", "earlier, of the December conversation"]]
    dates = {"validation_from": "2022-11-01T00:00:00+00:00", "test_from": "2022-12-01T00:00:00+00:00"}
    assert summary["splits"] == {"by": "time"} | dates


def test_seen_titles_are_counted_as_training_compares_them(converted):
    rows = [line(seen=["the heat"], ground_truth=["Heat (1995)"]), line(seen=["M"], ground_truth=["Up (2009)"])]
    assert converted(rows)[1]["rows"]["ground_truths_already_seen"] == 1


def test_the_same_text_and_reply_of_two_users_stays_two_rows(converted):
    out, _ = converted([line()] * 3)
    assert len({row["sample_id"] for row in read(out, "train")}) == 3


@pytest.mark.parametrize(("given_id", "sample_id"), [("r1", None), ("c1", None), ("c1_t7", "c1_t7"), ("c2_t7", None)])
def test_rows_of_a_conversation_share_its_name_despite_their_ids(converted, given_id, sample_id):
    rows = [line(conversation_id="c1", id=given_id), line(conversation_id="c1", id="other"), line(id="r3")]
    rows = read(converted(rows)[0], "train")
    assert [row["id"] for row in rows] == [given_id, "other", "r3"]
    assert rows[0]["sample_id"] == sample_id or sample_id is None
    assert rows[2]["sample_id"] == "r3"
    assert [get_group_id(row) for row in rows[:2]] == ["c1", "c1"]
    assert len({row["sample_id"] for row in rows}) == 3


def test_ids_that_differ_in_case_name_one_conversation(converted):
    rows = [line(conversation_id="AB-1", time="2022-10-01"), line(conversation_id="ab-1", time="2022-12-01")]
    rows.append(line(conversation_id="ab-2", time="2022-10-01"))
    out, _ = converted(rows, rule=SplitRule(test_from="2022-11-01"))
    assert len({get_group_id(row) for row in read(out, "test")}) == 1
    assert len(read(out, "test")) == 2
    assert len(read(out, "train")) == 1


def test_nested_contexts_without_ids_are_one_conversation(converted):
    longer = [*TURNS, {"role": "assistant", "content": "M?"}, {"role": "user", "content": "Seen it."}]
    other = [{"role": "user", "content": "I like Heat (1995), too."}]
    rows = [line(time="2022-10-01"), line(conversation=longer, time="2022-12-01")]
    rows.append(line(conversation=other, time="2022-10-01"))
    out, _ = converted(rows, rule=SplitRule(test_from="2022-11-01"))
    first, second = read(out, "test")  # the whole conversation is where its latest row belongs
    (third,) = read(out, "train")
    assert get_group_id(first) == get_group_id(second) != get_group_id(third)
    assert first["sample_id"] != second["sample_id"]


def test_shares_without_times_go_by_the_conversation(converted):
    rows = [line(conversation_id=n // 2, id=n) for n in range(400)]
    out, summary = converted(rows, rule=SplitRule(validation_share=0.1, test_share=0.2))
    sizes = {name: numbers["rows"] for name, numbers in summary["files"].items()}
    assert sizes["test"] == pytest.approx(80, abs=30)
    assert sizes["validation"] == pytest.approx(40, abs=25)
    halves = [{int(row["id"]) // 2 for row in read(out, name)} for name in sizes]
    assert sum(map(len, halves)) == 200 == len(set.union(*halves))
    assert "hash" in summary["splits"]["by"]


def test_an_opening_that_many_conversations_share_is_reported(converted):
    """They would all be one conversation, in one split."""
    openings = ["USER: Can you recommend me a film?\n", *(f"USER: I like number {n} best of all.\n" for n in range(60))]
    rows = [line(conversation=f"{openings[max(n - 39, 0)]}SYSTEM: {n}?\nUSER: no\n") for n in range(100)]
    _, summary = converted(rows, rule=SplitRule(test_share=0.3))
    (warning,) = summary["warnings"]
    assert warning.startswith("40 of 100 rows begin like ")
    assert "dialogues.jsonl: line 1," in warning
    assert f"warning: {warning}" in format_summary(summary, "out")
    assert converted(rows, overwrite=True)[1]["warnings"] == []  # not divided
    named = [row | {"conversation_id": n // 40} for n, row in enumerate(rows)]
    assert converted(named, rule=SplitRule(test_share=0.3), overwrite=True)[1]["warnings"] == []


def test_numbers_of_a_csv_are_numbers(converted):
    catalog = "title,year,mentions,price,code,shelf\nHeat,1995,7,1.5,007,3\nM,1931,0,2,12,\nUp,2009,2,1e-3,13,A\n"
    out, _ = converted([line()], catalog, ".csv")
    table = pq.read_table(out / "catalog.parquet")
    assert table["mentions"].to_pylist() == [7, 0, 2]
    assert table["price"].to_pylist() == [1.5, 2.0, 0.001]
    assert table["code"].to_pylist() == ["007", "12", "13"]  # 7 would be another code
    assert table["shelf"].to_pylist() == ["3", None, "A"]
    assert load_catalog(out / "catalog.parquet").mentions == [7, 0, 2]


def check_nothing_written(inputs):
    assert not inputs["out"].exists()
    assert [path.name for path in inputs["out"].parent.iterdir() if path.name.startswith(".")] == []


def find_problem(inputs, **options) -> str:
    """Return the message of a conversion that must fail and write nothing."""
    with pytest.raises(UserError) as error:
        convert_own(**inputs, **options)
    check_nothing_written(inputs)
    return str(error.value)


SOUND = [line(conversation_id=n) for n in range(38)]


def test_damaged_rows_are_left_out_listed_and_counted(files, tmp_path, capsys):
    inputs = files(SOUND)
    convert_own(**inputs)
    expected = {name: read(inputs["out"], name) for name in ("train", "catalog")}
    rows = [*SOUND[:3], line(time="day 1"), *SOUND[3:], line(time="day 2")]
    catalog = [*FILMS, *({"title": f"Film {n}", "year": 2000} for n in range(17)), {"name": "No Title"}]
    inputs = files(rows, catalog) | {"out": tmp_path / "skipped"}
    dialogues, items = str(inputs["conversations"][0]), str(inputs["catalog"])
    argv = ["--conversations", dialogues, "--catalog", items, "--out", str(inputs["out"])]
    assert main(argv) == 2
    assert not inputs["out"].exists()
    assert f"{dialogues}: line 40: time is 'day 2'; write 2022" in capsys.readouterr().err
    main([*argv, "--skip-damaged"])  # 2 of 40 rows and 1 of 21 items
    assert read(inputs["out"], "train") == expected["train"]
    assert [row["title"] for row in read(inputs["out"], "catalog")] == [row["title"] for row in catalog[:-1]]
    first, *others = map(json.loads, (inputs["out"] / "damaged.jsonl").read_text().splitlines())
    assert (first["file"], first["line"]) == (items, 21)
    reason = "time is 'day %s'; write 2022-10-31, 2022-10-31T18:05:00Z or seconds since 1970"
    problem = {"file": dialogues, "code": "time.not-a-time"}
    assert others == [problem | {"line": n, "reason": reason % day} for n, day in ((4, 1), (40, 2))]
    printed = capsys.readouterr().out
    assert "3 damaged rows left out, named in damaged.jsonl:" in printed
    assert "       2: time is ...; write 2022-10-31, 2022-10-31T18:05:00Z or seconds since 1970" in printed
    main([*argv, "--skip-damaged", "--overwrite"])  # its own report is no foreign file


def test_too_much_damage_is_refused(files):
    inputs = files([*SOUND, line(split="dev"), line(split="eval"), line(ground_truth=[])])
    with pytest.raises(UserError) as error:
        convert_own(**inputs, skip_damaged=0.05)
    message = str(error.value)
    assert "dialogues.jsonl: 3 of 41 rows are damaged, more than the share of 0.05" in message
    assert "       2: split is ...; write train, validation or test\n       1: neither ground_truth nor" in message
    assert not inputs["out"].exists()
    assert convert_own(**inputs, skip_damaged=0.08)["rows"]["read"] == 38
    with pytest.raises(UserError, match=r"catalog\.jsonl: 1 of 4 rows are damaged"):
        convert_own(**files(SOUND, [*FILMS, {"title": "Dune"}]), skip_damaged=0.05, overwrite=True)


def test_rows_lacking_a_time_or_split_others_have_are_damage(converted):
    for options, split in (({"time": "2022-10-01"}, "train"), ({"split": "test"}, "test")):
        rows = [*(line(conversation_id=n, **options) for n in range(20)), line(conversation_id=99)]
        rule = SplitRule("time" in options and "2022-11-01")
        out, _ = converted(rows, rule=rule, skip_damaged=0.05, overwrite=True)
        assert len(read(out, split)) == 20
        (entry,) = map(json.loads, (out / "damaged.jsonl").read_text().splitlines())
        assert (entry["line"], entry["code"]) == (21, "splits.no-time" if "time" in options else "splits.no-split")


def test_what_spoils_a_whole_file_is_never_left_out(files):
    inputs = files("conversation,seen,seen\nUSER: hi,,\n", "title,year\nM,1931\n", ".csv")
    assert "line 1: the header ['conversation', 'seen', 'seen'] has a" in find_problem(inputs, skip_damaged=0.9)
    inputs = files(SOUND, [*FILMS, {"title": "Jaws", "year": 1975, "plot": 3}])
    assert "line 4: column plot mixes types here" in find_problem(inputs, skip_damaged=0.9)


@pytest.mark.parametrize(
    ("catalog", "problem"),
    [
        ([*FILMS, {"name": "Alien", "year": 1979}], "line 4: no title (the keys are name, year); every item needs one"),
        ([*FILMS, {"title": " ", "year": 1979}], "line 4: no title"),
        ([*FILMS, {"title": "The Wall", "year": 201}], "line 4: 'The Wall' has the year 201; write a year from 1870"),
        ([*FILMS, {"title": "HEAT", "year": "1995"}], "line 4: 'HEAT' is already on line 1; remove one"),
        ([*FILMS, {"title": "A\nB", "year": 1995}], "line 4: 'A\\nB' contains a line break"),
        ([*FILMS, {"title": "Dune"}], "line 4: no year, but 3 items have one; fill it in, or leave the year out of"),
        ([{"title": "Heat", "year": "soon"}], "line 1: 'Heat' has the year 'soon'"),
        ([*FILMS, {"title": "Jaws", "year": 1975, "plot": 3}], "line 4: column plot mixes types here ("),
    ],
)
def test_a_damaged_catalog_is_reported(files, catalog, problem):
    assert problem in find_problem(files([line()], catalog))


def test_an_empty_catalog_is_refused(files):
    inputs = files([line()], [])
    with refuses("items.empty-catalog", inputs["catalog"]):
        convert_own(**inputs)
    check_nothing_written(inputs)


def test_a_catalog_in_parquet(files, tmp_path):
    inputs = files([line()])
    pq.write_table(pa.table({"title": ["M", "Up"], "year": [1931, 2009], "tags": [["a"], []]}), tmp_path / "c.parquet")
    convert_own(**inputs | {"catalog": tmp_path / "c.parquet"})
    assert read(inputs["out"], "catalog")[0] == {"title": "M", "year": 1931, "tags": ["a"]}
    (tmp_path / "c.parquet").write_text("none")
    inputs |= {"catalog": tmp_path / "c.parquet", "out": tmp_path / "o"}
    assert "c.parquet: not readable as parquet" in find_problem(inputs)


def test_rows_that_contradict_each_other_are_reported(files):
    assert "line 2: id 'a' is also the id of" in find_problem(files([line(id="a"), line(id="a")]))
    message = find_problem(files([line(split="train"), line(split="test")]))
    assert "line 2: split is test, but" in message
    assert "puts the same conversation into train;" in message
    rows = [line(split="train"), line(conversation_id=1)]
    assert "line 2: no split, but other rows have one" in find_problem(files(rows))
    with refuses("splits.rows-have-splits", "line 1"):
        convert_own(**files(rows[:1]), rule=SplitRule(test_share=0.5))
    rows = [line(time="2022-10-01"), line(conversation_id=1)]
    message = find_problem(files(rows), rule=SplitRule("2022-11-01"))
    assert "line 2: no time, which splitting by time needs in every row" in message


@pytest.mark.parametrize(
    ("rule", "code", "values"),
    [
        (
            SplitRule("2022-12-01", "2022-11-01"),
            "splits.dates-out-of-order",
            ["--validation-from 2022-12-01", "--test-from 2022-11-01"],
        ),
        (SplitRule("in May"), "splits.unreadable-date", ["--validation-from", "'in May'"]),
        (SplitRule("2022-12-01", test_share=0.1), "splits.dates-and-shares", []),
        (SplitRule(test_share=1.0), "splits.share-out-of-range", ["--test-share 1.0"]),
        (SplitRule(validation_share=0.6, test_share=0.4), "splits.shares-too-large", ["0.6", "0.4"]),
        (SplitRule(validation_share=0.4, test_share=0.4), "splits.no-train-rows", ["1 different times"]),
    ],
)
def test_rules_that_cannot_be_followed(files, rule, code, values):
    inputs = files([line(time="2022-10-01")])
    with refuses(code, *values):
        convert_own(**inputs, rule=rule)
    check_nothing_written(inputs)


def test_files_and_folders_that_do_not_fit(files, tmp_path, monkeypatch):
    inputs = files([line()])
    (tmp_path / "empty.jsonl").write_text("\n")
    with refuses("conversations.none-left", tmp_path / "empty.jsonl"):
        convert_own(**inputs | {"conversations": [tmp_path / "empty.jsonl"]})
    assert "absent.jsonl: no such file" in find_problem(inputs | {"conversations": [tmp_path / "absent.jsonl"]})
    with refuses("conversations.num-items-out-of-range", "--num-items 0"):
        convert_own(**inputs, num_items=0)
    check_nothing_written(inputs)
    convert_own(**inputs)
    with refuses("output.already-there", inputs["out"], "--overwrite"):
        convert_own(**inputs)
    convert_own(**inputs, overwrite=True)
    (inputs["out"] / "thesis.tex").write_text("mine")
    with refuses("output.foreign-file", inputs["out"], "thesis.tex"):
        convert_own(**inputs, overwrite=True)
    assert (inputs["out"] / "thesis.tex").exists()
    (inputs["out"] / "thesis.tex").unlink()
    link = tmp_path / "link"
    link.symlink_to(inputs["out"])  # to a bigger disk, say
    convert_own(**inputs | {"out": link}, overwrite=True)
    assert (link.is_symlink(), (inputs["out"] / "train.parquet").exists()) == (True, True)
    assert not list(tmp_path.glob(".*"))
    with refuses("output.file-in-path", "train.parquet"):
        convert_own(**inputs | {"out": inputs["out"] / "train.parquet" / "x"})
    monkeypatch.chdir(inputs["out"])
    with refuses("output.current-folder"):
        convert_own(**inputs | {"out": Path()}, overwrite=True)


def test_the_command(files, tmp_path, capsys):
    inputs = files([line(time="2022-10-01"), line(time="2022-12-01", conversation_id=2, ground_truth=["Alien (1979)"])])
    argv = ["--conversations", str(inputs["conversations"][0]), "--catalog", str(inputs["catalog"])]
    argv += ["--out", str(inputs["out"]), "--test-from", "2022-11-15"]
    main(argv)
    printed = capsys.readouterr().out
    assert (
        "train                 1 rows; 1 contexts; 1.00 ground truths per row, 1 at most; 0.0 % of mentions" in printed
    )
    assert "test                  1 rows; 1 contexts; 1.00 ground truths per row, 1 at most; 100.0 % of m" in printed
    assert "split by time; test_from 2022-11-15T00:00:00+00:00" in printed
    assert "no rows for validation, but run_rank_grpo.sh needs them" in printed
    assert main(argv) == 2
    assert "[output.already-there]" in capsys.readouterr().err


def test_ground_truth_entirely_outside_the_catalog_is_refused(files):
    rows = [line(ground_truth=["Alien (1979)", "Dune (2021)"], conversation_id=n) for n in range(3)]
    inputs = files(rows)
    with refuses("conversations.catalog-mismatch", *inputs["conversations"], "6 ground truths", inputs["catalog"]):
        convert_own(**inputs)
    check_nothing_written(inputs)
    convert_own(**files([*rows, line(conversation_id=3)]))
    convert_own(**files([line(ground_truth=[], demonstration=["Dune (2021)"])]), overwrite=True)  # SFT needs no hit


def test_all_problems_are_reported_in_one_run(files):
    rows = [line(time=f"day {n}", conversation_id=n) for n in range(40)]
    rows += [
        line(split="dev", seen=[7]),
        line(ground_truth="Heat (1995); Up"),
        line(id="x"),
        line(id="x", split="test"),
    ]
    message = find_problem(files(rows, [*FILMS, {"title": " ", "year": 1990}]))
    for problem in (
        "line 4: no title",
        "line 1: time is 'day 0'",
        "line 41: split is 'dev'",
        "line 41: seen holds 7",
        "line 42: ground_truth holds 'Up', which is not `Title (1999)`",
        "line 44: id 'x' is also the id of",
        "messages\nNothing was written.",
    ):
        assert problem in message
