"""CSV as programs write it: delimiters, escaped quotes, and rows that an unclosed quote swallows."""

from pathlib import Path

import pytest

from convrec.data.csv_records import read_csv
from convrec.data.damage import Damage
from tests.user_errors import refuses


def read(path: Path, content: str, damage: Damage | None = None, delimiter: str = ",") -> list[tuple[int, dict]]:
    path.write_text(content, encoding="utf-8", newline="")
    return list(read_csv(path, Damage() if damage is None else damage, delimiter))


def test_a_damaged_csv_record_spoils_no_other_record(tmp_path: Path) -> None:
    rows = [f'"USER: né number {n}\nSYSTEM: more?\nUSER: yes","M (1931)"\n' for n in range(40)]
    rows[7] = rows[7].replace("more", "m\udce9re")
    rows[20] = "a,b,c\n" + rows[20]
    content = ("conversation,truth\n" + "".join(rows)).encode("utf-8", "surrogateescape")
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    damage = Damage(0.1)
    conversations = [record["conversation"] for _, record in read_csv(path, damage, ",")]
    assert [text.split("number ")[1].split("\n")[0] for text in conversations] == [str(n) for n in range(40) if n != 7]
    assert [(finding.row, finding.lost) for finding in damage.findings] == [(23, 3), (62, 1)]  # first line, lines
    # A quote that is never closed swallows the rest of the file: as many rows as lines.
    plain = "USER: hi,M (1931)\n"
    path.write_text("conversation,truth\n" + plain * 20 + '"' + plain * 20)
    damage = Damage(0.4)
    sound = len(list(read_csv(path, damage, ",")))
    with refuses("data.damaged-rows", path, "20 of 40 rows"):
        damage.check([path], sound)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("default", [",", "\t"])
def test_the_header_shows_the_delimiter(tmp_path: Path, delimiter: str, default: str) -> None:
    content = f"a b{delimiter}c\n1{delimiter}2\n"
    assert read(tmp_path / "a.csv", content, delimiter=default) == [(2, {"a b": "1", "c": "2"})]


def test_header_with_the_default_delimiter_is_split_by_no_other(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", "a,b;c;d\n1,2\n") == [(2, {"a": "1", "b;c;d": "2"})]


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_column_of_pandas_is_skipped(tmp_path: Path, name: str) -> None:
    assert read(tmp_path / "a.csv", f"{name},title\n0,Heat\n1,Up\n") == [(2, {"title": "Heat"}), (3, {"title": "Up"})]
    damage = Damage()
    assert read(tmp_path / "a.csv", "a,,b\n1,2,3\n", damage) == []
    assert "['a', '', 'b']" in str(damage.findings[0].problem)


@pytest.mark.parametrize(
    ("row", "title"),
    [
        ('"The \\"Human\\" Factor",1979', 'The "Human" Factor'),
        ('"ends with \\"",1979', 'ends with "'),
        ('"two\nlines \\"here\\"\nand here",1979', 'two\nlines "here"\nand here'),
        ('"plain ""doubled"" quotes",1979', 'plain "doubled" quotes'),
        ("C:\\films,1979", "C:\\films"),
        ("Good\\, Bad,1979", "Good, Bad"),
        ("two\\\nlines,1979", "two\nlines"),
    ],
)
def test_quotes_and_delimiters_escape_by_doubling_or_backslash(tmp_path: Path, row: str, title: str) -> None:
    damage = Damage()
    records = [record for _, record in read(tmp_path / "a.csv", f"title,year\n{row}\nHeat,1995\n", damage)]
    assert records == [{"title": title, "year": "1979"}, {"title": "Heat", "year": "1995"}]
    assert not damage


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_an_unclosed_quote_that_swallows_a_row_is_damage(tmp_path: Path, delimiter: str) -> None:
    rows = ['1,user,"Heat is nice', '1,bot,Casino (1995)"', "2,user,like Alien?", "2,bot,Aliens"]
    damage = Damage()
    read(tmp_path / "a.csv", "\n".join(["id,who,text", *rows, ""]).replace(",", delimiter), damage, delimiter)
    (finding,) = damage.findings
    assert (finding.row, finding.lost) == (2, 2)
    assert "unclosed quote" in str(finding.problem)


def test_a_text_of_several_lines_swallows_no_row(tmp_path: Path) -> None:
    damage = Damage()
    rows = ['1,user,"Heat, Alien, Up\nDune, It, M\nthanks"', '2,bot,"a\n\nb"', "3,user,M"]
    assert len(read(tmp_path / "a.csv", "\n".join(["id,who,text", *rows]), damage)) == 3
    conversations = ['"USER: hi\nSYSTEM: Up?\nUSER: yes","M (1931)"'] * 3
    assert len(read(tmp_path / "a.csv", "\n".join(["conversation,truth", *conversations]), damage)) == 3
    assert len(read(tmp_path / "a.tsv", "\n".join(["a\tb", '"x\ny"\t1']), damage, "\t")) == 1
    assert not damage


def test_mysql_null_counts_as_an_empty_cell(tmp_path: Path) -> None:
    assert read(tmp_path / "a.tsv", "a\tb\n\\N\t1\n", delimiter="\t") == [(2, {"b": "1"})]
