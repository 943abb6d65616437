"""Records from every kind of file; damaged ones are named with their place, or skipped and reported."""

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.data.damage import BadRecord, BadRow, Damage, collected, counted
from convrec.data.records import read_records
from tests.user_errors import refuses

RECORDS = [{"title": "Heat", "note": "cops"}, {"title": "M"}]
TEXTS = {".jsonl": "".join(json.dumps(record) + "\n" for record in RECORDS), ".json": json.dumps(RECORDS)}
TEXTS[".csv"] = 'title,note\n"Heat",cops\n\nM, \n'


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_all(path: Path) -> None:
    """Read every record, and raise the damage."""
    damage = Damage()
    list(read_records(path, damage))
    damage.check()


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize(("suffix", "rows"), [(".jsonl", (1, 2)), (".JSON", (0, 1)), (".csv", (2, 4))])
def test_every_kind_of_text(tmp_path: Path, suffix: str, rows: tuple[int, int], is_compressed: bool) -> None:
    content = b"\xef\xbb\xbf" + TEXTS[suffix.lower()].encode()
    path = tmp_path / f"in{suffix}{'.gz' * is_compressed}"
    write(path, gzip.compress(content, mtime=0) if is_compressed else content)
    assert list(read_records(path, Damage())) == list(zip(rows, RECORDS, strict=True))


def test_parquet_rows_that_are_not_utf8_are_damage(tmp_path: Path) -> None:
    titles = pa.array([b"Heat", b"\xff", b"M"]).view(pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"title": titles}), tmp_path / "in.parquet")
    damage = Damage()
    assert list(read_records(tmp_path / "in.parquet", damage)) == [(0, {"title": "Heat"}), (2, {"title": "M"})]
    with refuses("data.damaged-rows", "in.parquet: row 1", "UTF-8"):
        damage.check()


DAMAGED = "data.damaged-rows"


@pytest.mark.parametrize(
    ("name", "content", "code", "value"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', DAMAGED, "line 2: invalid JSON ("),
        ("a.jsonl", '\n["a"]\n', DAMAGED, "line 2: a list"),
        ("a.jsonl", '{"a": "\\ud83d"}\n', DAMAGED, "\\ud800"),
        ("a.jsonl", '{"a": ' + "[" * 100_000, DAMAGED, "line 1: invalid JSON ("),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xe9lse"}\n', DAMAGED, "line 2: not UTF-8 (byte 7: "),
        ("a.json", '[{"a": 1}, "2"]', DAMAGED, "record 1: a str"),
        ("a.json", "{}", "data.not-a-record-list", "a.json"),
        ("a.json", '{"a": 1}\n{"a": 2', DAMAGED, "record 1: invalid JSON ("),
        ("a.json", '{"a": \n', "data.invalid-json", "invalid JSON ("),
        ("a.jsonl", '{"a": 1}\n{"b": {"a": 1, "a": 2}}', DAMAGED, "line 2: the key 'a'"),
        ("a.json", '[{"a": 1, "a": 1}]', "data.invalid-json", "the key 'a'"),
        ("a.csv", "a,b\nx,\0y\n", DAMAGED, "line 2: contains a NUL"),
        ("a.tsv", "a\tb\nx\n", DAMAGED, "line 2: 1 cells for 2 columns"),
        ("a.json", b'["\xe9"]', "data.invalid-encoding", "0xe9"),
        ("a.csv", "a,b\nx,y\nx, y,z\n", DAMAGED, "line 3: 3 cells for 2 columns"),
        ("a.csv", 'a,b\nx,y\n"x" y,z\n', DAMAGED, "line 3: invalid CSV ("),
        ("a.csv", "a,b,b\nx,,\n", DAMAGED, "line 1: the header ['a', 'b', 'b']"),
        ("a.parquet", "none", "data.unreadable-parquet", "a.parquet"),
        ("a.jsonl.gz", "plain", "data.damaged-compression", "gzip"),
        ("a.json.gz", gzip.compress(b"[1, 2, 3]" * 99, mtime=0)[:-12], "data.damaged-compression", "gzip"),
        ("a.jsonl", '{"a": "x\\u0000"}\n', DAMAGED, "line 1: contains a NUL"),
        ("a.jsonl.zst", "plain", "data.damaged-compression", "zstd"),
        ("a.xls", "", "data.unsupported-spreadsheet", ".xlsx"),
        ("a.pdf", "", "data.unknown-format", "'.pdf'"),
    ],
)
def test_unreadable_files_and_records_are_named(tmp_path: Path, name: str, content: Any, code: str, value: str) -> None:
    path = write(tmp_path / name, content)
    with refuses(code, path, value):
        read_all(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with refuses("data.missing-file", tmp_path / "absent.jsonl"):
        read_all(tmp_path / "absent.jsonl")
    (tmp_path / "folder.csv").mkdir()
    with refuses("data.not-a-file", tmp_path / "folder.csv"):
        read_all(tmp_path / "folder.csv")


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", "sep=,\na,b\n1,2\n", [(3, {"a": "1", "b": "2"})]),
        ("a.csv", '"sep=;"\r\na;b\r\n1;2,3\r\n', [(3, {"a": "1", "b": "2,3"})]),
        ("a.TSV", "a\tb\n1,5\t2\n", [(2, {"a": "1,5", "b": "2"})]),
        ("a.txt", "one\r\n\ntwo", [(1, {"line": "one"}), (2, {"line": ""}), (3, {"line": "two"})]),
        ("a.json", '{"a": 1}\n\n{"a": 2}\n', [(0, {"a": 1}), (1, {"a": 2})]),
        ("a.json", '{"tickets": [{"a": 1}, {"a": 2}], "count": 2}', [(0, {"a": 1}), (1, {"a": 2})]),
        ("a.json", '{"messages": [{"a": 1}], "b": 2}', [(0, {"messages": [{"a": 1}], "b": 2})]),
        ("a.json", '{"conversations": [{"a": 1}], "b": 2}', [(0, {"a": 1})]),
        ("a.json", '{"conversations": [{"from": "x"}]}', [(0, {"conversations": [{"from": "x"}]})]),
        ("a.json", '{"x": {"a": 1}, "y": {"a": 2}}', [(n, {"record_name": "xy"[n], "a": n + 1}) for n in (0, 1)]),
        ("a.json", '{"a": {"0": 1, "1": 2}, "b": {"0": 3, "1": 4}}', [(0, {"a": 1, "b": 3}), (1, {"a": 2, "b": 4})]),
        ("a.json", '{"meta": {"n": 1}, "b": {"m": 2}}', [(0, {"meta": {"n": 1}, "b": {"m": 2}})]),
        ("a.jsonl", '{"a": "\\\\u0000"}\n', [(1, {"a": "\\u0000"})]),
        ("a.txt", "a\tb\n1\t2\n", [(2, {"a": "1", "b": "2"})]),
    ],
)
def test_layouts_of_other_programs_are_read(tmp_path: Path, name: str, content: str, rows: list) -> None:
    assert list(read_records(write(tmp_path / name, content), Damage())) == rows


def test_a_list_of_objects_is_a_record_if_lists_are_allowed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '[{"a": 1}]\n["a"]\n[]\n')
    damage = Damage()
    assert list(read_records(path, damage, lists=True)) == [(1, {"list": [{"a": 1}]})]
    assert [finding.row for finding in damage.findings] == [2, 3]


def test_both_compressions_are_read(tmp_path: Path) -> None:
    for name, compress in (("a.csv.gz", gzip.compress), ("A.CSV.ZST", lambda text: pa.Codec("zstd").compress(text))):
        content = compress(b"a,b\n1,2\n")
        path = write(tmp_path / name, content if isinstance(content, bytes) else content.to_pybytes())
        assert list(read_records(path, Damage())) == [(2, {"a": "1", "b": "2"})]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_line_that_is_too_long_is_never_read_whole(tmp_path: Path, suffix: str) -> None:
    start, end = ('{"a": "', '"}\n') if suffix == ".jsonl" else ('"', '"\n')
    head = "a\n" if suffix == ".csv" else ""
    path = write(tmp_path / f"long{suffix}", f"{head}{start}{'x' * (200 << 20)}{end}{start}short{end}")
    damage = Damage()
    tracemalloc.start()
    records = list(read_records(path, damage))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [record["a"] for _, record in records] == ["short"]
    (finding,) = damage.findings
    assert finding.row == (2 if head else 1)
    assert "longer than 8 MiB" in str(finding.problem)
    assert peak < 64 << 20
    for size, count in ((8 << 20, 0), ((8 << 20) - 100, 1)):
        write(path, f"{head}{start}{'x' * size}{end}")
        assert len(list(read_records(path, Damage()))) == count


# ---- the report


def test_equal_problems_are_reported_once_and_file_damage_always() -> None:
    damage = Damage(end="Nothing was written.")
    for row in range(1, 31):
        damage.add("a.jsonl", row, BadRecord("row.unknown-split", "split is %r; write train", "dev"))
    for row in range(25):
        damage.add("b.json", row, BadRecord("time.not-a-time", "time is %r; write a date", f"day {row}"))
    with pytest.raises(UserError) as error:
        damage.check()
    first, *others, more, end = str(error.value).split("\n")
    assert first == "a.jsonl: lines 1, 2, 3, 4, 5 and 25 more: split is 'dev'; write train [row.unknown-split]"
    assert (others[0], len(others)) == ("b.json: record 0: time is 'day 0'; write a date [time.not-a-time]", 19)
    assert (more, end) == ("and 6 more messages", "Nothing was written.")
    skipping = Damage(0.9)
    skipping.findings = damage.findings
    skipping.check(["a.jsonl", "b.json"], 10)
    skipping.add("c.csv", 1, BadRecord("csv.delimiter", "columns are divided by ';'"), lost=0)
    with refuses(DAMAGED) as whole_file:
        skipping.check(["a.jsonl", "b.json"], 10)
    assert str(whole_file.value) == "c.csv: line 1: columns are divided by ';' [csv.delimiter]"


def test_damaged_rows_count_once_and_problems_omit_their_values(tmp_path: Path) -> None:
    damage = Damage(0.5)
    for row, value in ((0, "a"), (1, "b"), (1, "c")):
        problems: list[BadRecord] = []
        with collected(problems, "time"):
            raise BadRecord("time.not-a-time", "is %r; write a date", value)
        damage.add("in.parquet", row, BadRow(problems))
    assert damage.counts() == {"time is ...; write a date": 2}
    damage.check(["in.parquet"], 2)
    with refuses(DAMAGED, "in.parquet: 2 of 3 rows", "0.5", "\n       2: time is ...;"):
        damage.check(["in.parquet"], 1)
    damage.write_report(tmp_path / "damaged.jsonl")
    assert [json.loads(line) for line in (tmp_path / "damaged.jsonl").read_text().splitlines()] == [
        {"file": "in.parquet", "row": row, "code": "time.not-a-time", "reason": f"time is {value!r}; write a date"}
        for row, value in ((0, "a"), (1, "b"))
    ]


def test_a_long_value_is_quoted_in_part_and_many_reasons_are_cut() -> None:
    assert len(str(BadRecord("row.unknown-split", "is %r", "dev" * 10**5))) < 400
    lines = counted({f"reason {n}": n + 1 for n in range(25)})
    assert (lines[0], lines[-1]) == ("      25: reason 24", "          and 5 more reasons")


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_index_of_pandas_in_parquet_is_skipped(tmp_path: Path, order: list[int]) -> None:
    path = tmp_path / "a.parquet"
    frame = pd.DataFrame({"title": ["Heat", "Up"], "Unnamed: 0": [0, 1]})
    frame.iloc[order].to_parquet(path)
    assert [record for _, record in read_records(path, Damage())] == [{"title": ["Heat", "Up"][row]} for row in order]
