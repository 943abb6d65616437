"""Files of conversations: unknown formats, columns that nothing reads, speakers, dates and splits."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from data_prep.own import convert_own, format_summary, main
from data_prep.own_data.source import ReadingOptions, parse_file_splits
from tests.data_prep.own_data.forms import samples
from tests.user_errors import refuses

CATALOG = "title,year\nHeat,1995\nAlien,1979\nBlade Runner,1982\nDune,2021\n"
OWN = {"conversation": [{"role": "user", "content": "Like Heat?"}], "ground_truth": ["Alien (1979)"]}
READING = {field.name for field in fields(ReadingOptions)}


@pytest.fixture
def convert(tmp_path: Path):
    """convert(records or text, suffix, **options) -> (rows of train, summary)."""
    (tmp_path / "catalog.csv").write_text(CATALOG)

    def converted(content: Any, suffix: str = ".jsonl", **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        path = tmp_path / f"a{suffix}"
        path.write_text(content if isinstance(content, str) else samples.lines(*content))
        reading = ReadingOptions(**{name: options.pop(name) for name in READING & options.keys()})
        catalog = tmp_path / "catalog.csv"
        summary = convert_own([path], catalog, tmp_path / "out", overwrite=True, reading=reading, **options)
        return pq.read_table(tmp_path / "out" / "train.parquet").to_pylist(), summary

    return converted


@pytest.mark.parametrize(
    ("record", "closest"),
    [
        ({"segments": [{"label": True, "text": "Alien (1979)"}]}, "own"),
        ({"object": "chat.completion", "id": "c", "created": 1, "choices": []}, "openai-responses"),
        ({"text": "### Human: Films?### Assistant: Alien (1979)", "id": 1}, "own"),
        ({"instruction": "Films?", "answer": "Alien (1979)"}, "alpaca"),
    ],
)
def test_an_unknown_format_is_reported_once_with_the_closest(convert, record: dict, closest: str) -> None:
    values = ("a.jsonl", ", ".join(record), json.dumps(record), f"--format {closest},")
    with refuses("conversations.unknown-format", *values) as error:
        convert([record] * 30)
    assert "\n" not in str(error.value)


def test_a_list_of_records_on_a_line_is_refused(convert) -> None:
    with refuses("conversations.unknown-format", "a.jsonl: an entry is a list of records"):
        convert(json.dumps([OWN]) + "\n")


def test_unread_columns_are_reported_once_and_not_written(convert) -> None:
    rows, summary = convert(
        [OWN | {"seen_titles": ["Heat"], "subreddit": "x", "conversation_id": n} for n in range(30)]
    )
    assert len(rows) == 30
    note = "columns not read: seen_titles (if it is seen: --columns seen=seen_titles), subreddit"
    assert summary["read"] == [note]
    rows, _ = convert([OWN | {"seen_titles": ["Heat"]}], columns={"seen": "seen_titles"})
    assert rows[0]["seen_titles"] == ["Heat"]


def test_strict_refuses_unread_columns(convert) -> None:
    with pytest.raises(UserError) as error:
        convert(
            [OWN, OWN | {"seen_titles": ["Heat"]}, OWN | {"seen_titles": ["Heat"], "x": 1}],
            strict=True,
            skip_damaged=0.9,
        )
    seen_titles, x = str(error.value).splitlines()[:2]
    assert "a.jsonl: line 2: unknown key 'seen_titles' (if it is seen: --columns seen=seen_titles);" in seen_titles
    assert "a.jsonl: line 3: unknown key 'x';" in x
    assert convert([OWN | {"extra": {"x": 1}}], strict=True)[1]["read"] == []


def test_our_keys_with_capitals_and_blanks_are_read(convert) -> None:
    content = "Conversation,Ground Truth,Conversation ID,Seen\nUSER: Like Heat?,Alien (1979),7,Heat\n"
    (row,), summary = convert(content, ".csv")
    assert (row["seen_titles"], row["sample_id"].split("_")[0]) == (["Heat"], "7")
    assert summary["read"] == []


def test_a_recommender_that_no_speaker_is_called_is_refused(convert) -> None:
    with refuses("conversations.unknown-recommender", "--recommender Rob", "Ann, Bob"):
        convert(samples.ANDROID, ".txt", recommenders=["Rob"], truth="from-next-turns")
    assert len(convert(samples.ANDROID, ".txt", recommenders=["BOB "], truth="from-next-turns")[0]) == 1
    two_ways = "ticket,created_at,author,body\nT1,01/03/2024 10:01,Bob,Hi\n"
    with pytest.raises(UserError, match=r"is '01/03/2024 10:01': 1 March or 3 January"):
        convert(two_ways, ".csv", recommenders=["Bob"], truth="from-next-turns")
    with refuses("conversations.unknown-recommender", "--recommender Bob", "no speakers"):
        convert([{"messages": samples.messages()}], recommenders=["Bob"], truth="from-next-turns")


def test_dates_of_a_file_are_read_in_one_order(convert) -> None:
    records = [OWN | {"time": time, "conversation_id": time} for time in ("05.02.2021", "20.02.2021")]
    rows, _ = convert(records, rule=_by_time("2021-03-01"))
    assert len(rows) == 2  # by month first, one would be of May
    with pytest.raises(UserError, match=r"is '05\.02\.2021': 5 February or 2 May"):
        convert(records[:1])


def _by_time(date: str) -> Any:
    from data_prep.own_data.splits import SplitRule

    return SplitRule(test_from=date)


def test_a_file_per_split(tmp_path: Path, capsys) -> None:
    (tmp_path / "catalog.csv").write_text(CATALOG)
    files = []
    for number, name in enumerate(("train", "dev", "test")):
        files.append(str(tmp_path / f"{name}.jsonl"))
        Path(files[-1]).write_text(samples.lines(OWN | {"conversation_id": number}))
    argv = ["--catalog", str(tmp_path / "catalog.csv"), "--out", str(tmp_path / "out")]
    assert main([*argv, "--split", *files]) == 0
    assert all((tmp_path / "out" / f"{split}.parquet").exists() for split in ("train", "validation", "test"))
    assert "3 rows read, 1 to train on, 0 to imitate, 0.0% of ground truths outside the catalog, 0 damaged" in (
        capsys.readouterr().out
    )
    for inputs in ([], ["--split", *files, "--conversations", files[0]]):
        assert main([*argv, *inputs]) == 2
        assert "[conversations.no-input]" in capsys.readouterr().err
    Path(files[0]).write_text(samples.lines(OWN | {"split": "test"}))
    assert main([*argv, "--overwrite", "--split", *files]) == 2
    assert "train.jsonl: line 1: has its own split" in capsys.readouterr().err


def test_splits_by_name_can_have_several_files() -> None:
    split_of_file = parse_file_splits(["train=a.tsv", "train=b.tsv", "test=c.tsv"])
    assert split_of_file == {Path("a.tsv"): "train", Path("b.tsv"): "train", Path("c.tsv"): "test"}
    for texts, code, text in (
        (["dev=a"], "conversations.unknown-split", "--split dev=a"),
        (["a", "b", "c", "d"], "conversations.unknown-split", "--split d"),
        (["a", "a"], "conversations.repeated-split-file", "--split a"),
    ):
        with refuses(code, text):
            parse_file_splits(texts)


def test_the_last_line_has_the_counts_that_matter(convert) -> None:
    records = [OWN | {"conversation_id": 1}, OWN | {"conversation_id": 2, "ground_truth": ["Up (2009)"]}, {"seen": []}]
    _, summary = convert(records, skip_damaged=0.5)
    last = format_summary(summary, "out").splitlines()[-1]
    assert last == (
        "wrote out: 2 rows read, 2 to train on, 0 to imitate, 50.0% of ground truths outside the catalog, 1 damaged"
    )
