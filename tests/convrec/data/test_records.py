"""Records of every kind of file; what is damaged is told with its place, or left out and reported."""

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

RECORDS = [{"title": "Heat", "note": "cops"}, {"title": "M"}]
TEXTS = {".jsonl": "".join(json.dumps(record) + "\n" for record in RECORDS), ".json": json.dumps(RECORDS)}
TEXTS[".csv"] = 'title,note\n"Heat",cops\n\nM, \n'


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def told(path: Path) -> str:
    """What reading all of it says."""

    def read() -> None:
        list(read_records(path, damage))
        damage.check()

    damage = Damage()
    with pytest.raises(UserError) as error:
        read()
    return str(error.value)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("suffix", "rows"), [(".jsonl", (1, 2)), (".JSON", (0, 1)), (".csv", (2, 4))])
def test_every_kind_of_text(tmp_path: Path, suffix: str, rows: tuple[int, int], packed: bool) -> None:
    content = b"\xef\xbb\xbf" + TEXTS[suffix.lower()].encode()
    path = write(tmp_path / f"in{suffix}{'.gz' * packed}", gzip.compress(content, mtime=0) if packed else content)
    assert list(read_records(path, Damage())) == list(zip(rows, RECORDS, strict=True))


def test_parquet_and_its_rows_that_are_no_utf8(tmp_path: Path) -> None:
    titles = pa.array([b"Heat", b"\xff", b"M"]).view(pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"title": titles}), tmp_path / "in.parquet")
    damage = Damage()
    assert list(read_records(tmp_path / "in.parquet", damage)) == [(0, {"title": "Heat"}), (2, {"title": "M"})]
    with pytest.raises(UserError, match=r"in\.parquet: row 1: text that is no UTF-8; write the row again"):
        damage.check()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', "a.jsonl: line 2: no JSON ("),
        ("a.jsonl", '\n["a"]\n', "a.jsonl: line 2: a list, not an object; write {...}"),
        ("a.jsonl", '{"a": "\\ud83d"}\n', "a.jsonl: line 1: half of a surrogate pair"),
        ("a.jsonl", '{"a": ' + "[" * 100_000, "a.jsonl: line 1: no JSON ("),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xe9lse"}\n', "a.jsonl: line 2: no UTF-8 (byte 7: "),
        ("a.json", '[{"a": 1}, "2"]', "a.json: record 1: a str, not an object"),
        ("a.json", "{}", "a.json: its JSON is no list of records"),
        ("a.json", '{"a": 1}\n{"a": 2', "a.json: record 1: no JSON ("),
        ("a.json", '{"a": \n', "a.json: no JSON ("),
        ("a.jsonl", '{"a": 1}\n{"b": {"a": 1, "a": 2}}', "a.jsonl: line 2: the key 'a' is there twice in one object"),
        ("a.json", '[{"a": 1, "a": 1}]', "a.json: the key 'a' is there twice in one object; keep one"),
        ("a.csv", "a,b\nx,\0y\n", "a.csv: line 2: a NUL, which is no text; take it out"),
        ("a.tsv", "a\tb\nx\n", "a.tsv: line 2: 1 cells for 2 columns"),
        ("a.json", b'["\xe9"]', "a.json: no UTF-8 ("),
        ("a.csv", "a,b\nx,y\nx, y,z\n", "a.csv: line 3: 3 cells for 2 columns; put"),
        ("a.csv", 'a,b\nx,y\n"x" y,z\n', "a.csv: line 3: no CSV ("),
        ("a.csv", "a,b,b\nx,,\n", "a.csv: line 1: the header ['a', 'b', 'b'] has a name twice"),
        ("a.parquet", "none", "a.parquet: not readable as parquet ("),
        ("a.jsonl.gz", "plain", "a.jsonl.gz: not readable as gzip ("),
        ("a.json.gz", gzip.compress(b"[1, 2, 3]" * 99, mtime=0)[:-12], "a.json.gz: not readable as gzip ("),
        ("a.jsonl", '{"a": "x\\u0000"}\n', "a.jsonl: line 1: a NUL (\\u0000), which is no text; take it out"),
        ("a.jsonl.zst", "plain", "a.jsonl.zst: not readable as zstd ("),
        ("a.xls", "", "a.xls: a spreadsheet of a kind that is not read; save it as .xlsx, or as CSV UTF-8"),
        ("a.pdf", "", "a.pdf: unknown format '.pdf'; write .jsonl, .json, .csv, .tsv, .txt (also"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: Any, said: str) -> None:
    assert said in told(write(tmp_path / name, content))


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    assert "absent.jsonl: no such file" in told(tmp_path / "absent.jsonl")
    (tmp_path / "folder.csv").mkdir()
    assert "folder.csv: a folder; name the files in it" in told(tmp_path / "folder.csv")


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
def test_what_other_programs_call_such_a_file(tmp_path: Path, name: str, content: str, rows: list) -> None:
    assert list(read_records(write(tmp_path / name, content), Damage())) == rows


def test_a_list_of_objects_is_a_record_where_lists_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '[{"a": 1}]\n["a"]\n[]\n')
    damage = Damage()
    assert list(read_records(path, damage, lists=True)) == [(1, {"list": [{"a": 1}]})]
    assert [finding.row for finding in damage.findings] == [2, 3]


def test_a_packed_file_of_either_kind(tmp_path: Path) -> None:
    for name, pack in (("a.csv.gz", gzip.compress), ("A.CSV.ZST", lambda text: pa.Codec("zstd").compress(text))):
        content = pack(b"a,b\n1,2\n")
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
    assert "longer than 8 MiB; shorten it, or write parquet" in str(finding.problem)
    assert peak < 64 << 20
    for size, count in ((8 << 20, 0), ((8 << 20) - 100, 1)):
        write(path, f"{head}{start}{'x' * size}{end}")
        assert len(list(read_records(path, Damage()))) == count


# ---- the report


def test_equal_problems_are_reported_once_and_file_damage_always() -> None:
    damage = Damage(end="Nothing was written.")
    for row in range(1, 31):
        damage.add("a.jsonl", row, BadRecord("split is %r; write train", "dev"))
    for row in range(25):
        damage.add("b.json", row, BadRecord("time is %r; write a date", f"day {row}"))
    with pytest.raises(UserError) as error:
        damage.check()
    first, *others, more, end = str(error.value).split("\n")
    assert first == "a.jsonl: lines 1, 2, 3, 4, 5 and 25 more: split is 'dev'; write train"
    assert (others[0], len(others)) == ("b.json: record 0: time is 'day 0'; write a date", 19)
    assert (more, end) == ("and 6 more such messages", "Nothing was written.")
    skipping = Damage(0.9)
    skipping.findings = damage.findings
    skipping.check(["a.jsonl", "b.json"], 10)
    skipping.add("c.csv", 1, "columns are divided by ';'", lost=0)
    with pytest.raises(UserError, match=r"^c\.csv: line 1: columns are divided by ';'$"):
        skipping.check(["a.jsonl", "b.json"], 10)


def test_damaged_rows_count_once_and_problems_omit_their_values(tmp_path: Path) -> None:
    damage = Damage(0.5)
    for row, value in ((0, "a"), (1, "b"), (1, "c")):
        problems: list[BadRecord] = []
        with collected(problems, "time"):
            raise BadRecord("is %r; write a date", value)
        damage.add("in.parquet", row, BadRow(problems))
    assert damage.counts() == {"time is ...; write a date": 2}
    damage.check(["in.parquet"], 2)
    with pytest.raises(
        UserError, match=r"2 of 3 rows are damaged, more than the share of 0\.5 .*\n +2: time is \.\.\.;"
    ):
        damage.check(["in.parquet"], 1)
    damage.write_report(tmp_path / "damaged.jsonl")
    assert [json.loads(line) for line in (tmp_path / "damaged.jsonl").read_text().splitlines()] == [
        {"file": "in.parquet", "row": row, "reason": f"time is {value!r}; write a date"}
        for row, value in ((0, "a"), (1, "b"))
    ]


def test_a_long_value_is_quoted_in_part_and_many_reasons_are_cut() -> None:
    assert len(str(BadRecord("is %r", "dev" * 10**5))) < 400
    lines = counted({f"reason {n}": n + 1 for n in range(25)})
    assert (lines[0], lines[-1]) == ("      25: reason 24", "          and 5 more reasons")


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_index_of_pandas_in_parquet_is_left_out(tmp_path: Path, order: list[int]) -> None:
    frame = pd.DataFrame({"title": ["Heat", "Up"], "Unnamed: 0": [0, 1]})
    frame.iloc[order].to_parquet(path := tmp_path / "a.parquet")
    assert [record for _, record in read_records(path, Damage())] == [{"title": ["Heat", "Up"][row]} for row in order]
