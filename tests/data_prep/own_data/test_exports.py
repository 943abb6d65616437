"""What other programs write becomes the rows that it says, by a guess of its form."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.errors import UserError
from data_prep.own import convert_own, format_summary, main
from data_prep.own_data.exports import FORMS, guess_form
from tests.data_prep.own_data import samples

CATALOG = "title,year\nHeat,1995\nAlien,1979\nBlade Runner,1982\nDune,2021\nIt,2017\n"
WANTED = [["Blade Runner", "1982"], ["Alien", "1979"]]


@pytest.fixture
def convert(tmp_path: Path):
    """convert(file name, content, **options) -> (rows of train or sft_train, summary)."""
    (tmp_path / "catalog.csv").write_text(CATALOG)

    def converted(name: str, content: str | bytes, **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        summary = convert_own([path], tmp_path / "catalog.csv", tmp_path / "out", overwrite=True, **options)
        table = tmp_path / "out" / f"{'train' if 'train' in summary['files'] else 'sft_train'}.parquet"
        return pq.read_table(table).to_pylist(), summary

    return converted


def conversation(row: dict[str, Any]) -> str:
    return row["prompt"][0]["content"].partition("Here is the conversation: ")[2]


@pytest.mark.parametrize("name", samples.OF_A_CONVERSATION)
def test_what_is_named_in_answer_to_the_user_is_wanted(convert, name: str) -> None:
    file, content, form, options = samples.OF_A_CONVERSATION[name]
    (row, *_), summary = convert(file, content, **options)
    said = conversation(row)
    assert said.endswith(f"USER: {samples.LIKED}\n") or (name == "INSPIRED" and said.endswith("USER: I liked heat.\n"))
    assert said.count("USER:") == 1
    assert row["groundtruth_with_release_year"] == WANTED
    assert row["seen_titles"] == ["Heat"]
    assert f": read as {form} (guessed; --format names another)" in format_summary(summary, "out")


@pytest.mark.parametrize("name", samples.OF_AN_ANSWER)
def test_an_answer_that_is_a_list_is_a_demonstration(convert, name: str) -> None:
    file, content, form = samples.OF_AN_ANSWER[name]
    (row,), summary = convert(file, content, num_items=2)
    assert row["completion"][0]["content"] == "Blade Runner (1982)\nAlien (1979)"
    assert conversation(row).endswith(f"{samples.LIKED}\n")
    assert f": read as {form} (" in summary["read"][0]
    (row,), _ = convert(file, content, num_items=2, truth="from-next-turns")
    assert row["groundtruth_with_release_year"] == WANTED


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".JSONL.GZ", ".ndjson", ".parquet", ".json", ".Json.gz"])
def test_every_kind_of_file_holds_every_form(convert, tmp_path: Path, suffix: str) -> None:
    records = [{"messages": samples.messages()}] * 2
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), tmp_path / "table")
        content = (tmp_path / "table").read_bytes()
    else:
        text = json.dumps(records) if "json" in suffix.lower() and "jsonl" not in suffix.lower() else ""
        content = (text if text and "nd" not in suffix else samples.lines(*records)).encode()
        content = gzip.compress(content) if suffix.lower().endswith(".gz") else content
    rows, _ = convert(f"chats{suffix}", content, truth="from-next-turns")
    assert [row["groundtruth_with_release_year"] for row in rows] == [WANTED, WANTED]


def test_every_form_has_a_sample() -> None:
    guessed = {form for _, _, form, *_ in [*samples.OF_A_CONVERSATION.values(), *samples.OF_AN_ANSWER.values()]}
    assert guessed == set(FORMS) - {"own"}
