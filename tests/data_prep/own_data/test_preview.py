"""A preview of the first training rows."""

from pathlib import Path

import pytest

from data_prep.own import main
from tests.data_prep.own_data.forms import samples

CATALOG = "title,year\nHeat,1995\nAlien,1979\nBlade Runner,1982\nDune,2021\n"


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    (tmp_path / "catalog.csv").write_text(CATALOG)
    return ["--conversations", str(tmp_path / "chats.jsonl"), "--catalog", str(tmp_path / "catalog.csv")]


def test_preview_shows_rows_and_problems_and_writes_nothing(tmp_path: Path, argv, capsys) -> None:
    bad = {"messages": [{"role": "user", "content": "Hi"}, {"role": "bot", "content": "?"}]}
    chats = samples.lines(bad, *({"messages": samples.messages(), "model": "m"} for _ in range(5)))
    (tmp_path / "chats.jsonl").write_text(chats)
    assert main([*argv, "--truth", "from-next-turns", "--item", "film", "--preview"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("--- ") == 3
    assert printed.count("prompt: Pretend you are a film recommender system.") == 1
    row = (
        f"chats.jsonl: line 3\nUSER: {samples.LIKED}\nseen: Heat\nground truth: Blade Runner (1982) | Alien (1979)\n"
        f"demonstration: -\nwhy: the answer, or the user after it, names new items: {samples.ANSWER}\n"
    )
    assert row in printed
    assert "chats.jsonl: line 1: turn 1 has the role 'bot'" in printed
    assert "chats.jsonl: read as chat (guessed; --format names another)" in printed
    assert "columns not read: model" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["catalog.csv", "chats.jsonl"]


def test_a_preview_of_long_conversations_fits_a_screen(tmp_path: Path, argv, capsys) -> None:
    content = "\n".join([*["word " * 500] * 40, "I liked Heat (1995)."])
    (tmp_path / "chats.jsonl").write_text(
        samples.lines(*({"messages": samples.messages(content=content)} for _ in range(9)))
    )
    assert main([*argv, "--truth", "from-next-turns", "--preview", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= max(160, len(str(tmp_path)) + 100)
    assert (
        lines.count("I liked Heat (1995).") == lines.count("... 34 more lines") == 3
    )  # the end, which holds the request


def test_an_empty_preview_and_missing_output_options(tmp_path: Path, argv, capsys) -> None:
    (tmp_path / "chats.jsonl").write_text("")
    assert main([*argv, "--preview", "1"]) == 0
    assert capsys.readouterr().out == "no conversations. Check how the file was written.\n"
    for options in ([], ["--preview", "1", "--out", "x"]):
        assert main([*argv, *options]) == 2
        assert "[conversations.no-output]" in capsys.readouterr().err
