"""Text files in any common encoding; a guess is reported."""

from pathlib import Path

import pytest

from convrec.data.damage import BadRecord
from convrec.data.text_files import describe_encoding, detect_encoding, iter_lines
from tests.user_errors import refuses

TEXT = "title,note\nAmélie,“sweet” – 5 €\nLéon,ça va\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"])
def test_a_table_in_any_common_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(TEXT.encode(encoding))
    lines = list(iter_lines(path, is_table=True))
    assert lines == [(number + 1, line) for number, line in enumerate(TEXT.splitlines(keepends=True))]
    note = describe_encoding(path)
    if encoding == "cp1252":
        assert note is not None
        assert note.startswith(f"{path}: ")
        assert "Windows-1252: Amélie, Léon, ça." in note
    else:
        assert note is None


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1251", "Стиляги\nБрат\n"),
        ("shift_jis", "千と千尋の神隠し\n"),
        ("cp1253", "Ζορμπάς\n"),
        ("gb18030", "你好推荐\n"),
    ],
)
def test_another_encoding_is_not_read_as_a_wrong_one(tmp_path: Path, encoding: str, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(("title,year\n" + text).encode(encoding))
    assert isinstance(list(iter_lines(path, is_table=True))[1][1], BadRecord)


def test_a_damaged_line_of_utf8_does_not_change_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("title\nAmélie\nLéon\n".encode() + b"M\xe9re\n")
    assert detect_encoding(path) == "utf-8"
    *sound, (number, damaged) = iter_lines(path, is_table=True)
    assert [text for _, text in sound] == ["title\n", "Amélie\n", "Léon\n"]
    assert number == 4
    assert isinstance(damaged, BadRecord)


def test_json_is_utf8_or_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": "Am\xe9lie"}\n')
    ((_, text),) = iter_lines(path)
    assert "not UTF-8 (byte 9: " in str(text)


def test_only_tables_report_a_guess(tmp_path: Path) -> None:
    content = '{"a": "Amélie"}\n'.encode("cp1252")
    for name in ("a.jsonl", "a.json", "a.txt"):  # a chat's .txt has no tabs
        (tmp_path / name).write_bytes(content)
        assert describe_encoding(tmp_path / name) is None
    path = tmp_path / "b.txt"
    path.write_bytes("title\tnote\nAmélie\tça\n".encode("cp1252"))
    assert "read as Windows-1252: Amélie, ça" in str(describe_encoding(path))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_truncated_utf16_is_refused(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("title".encode(encoding)[:-1])
    with refuses("text.invalid-encoding", path, "truncated UTF-16"):
        list(iter_lines(path))


def test_nuls_in_a_text_do_not_make_it_utf16(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"title\nHeat\n" + b"\0" * 4000)
    assert detect_encoding(path) == "utf-8"
