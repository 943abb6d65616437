"""Phrases that CONTRIBUTING.md asks to avoid are in no page of the manual and in no text of the program.

Each pattern is one that nobody would write on purpose; the table says what to write instead. A place where a phrase is
right has an entry in EXCEPTIONS.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Files and folders that are searched: .md, and the strings of .py.
COVERED = ("README.md", "CONTRIBUTING.md", "docs", "convrec", "recipes", "reward", "data_prep", "scripts")
INSTEAD = {  # pattern -> what to write
    r"\banew\b": "again",
    r"\blikewise\b": "also, the same way",
    r"\bbut for\b": "except for",
    r"\ball the same\b": "anyway",
    r"\bthe same after\b": "again, or name what is equal",
    r"\bshall\b": "is to, will, must",
    r"\bof before\b": "earlier, previous",
    r"\bof ours\b": "name the owner: of this project, of convrec",
    r"\bof his own\b|\bof her own\b": "their own",
    r"\ba head of its own\b": "untied embeddings",
    r"\bbehind an address\b": "an OpenAI-compatible endpoint",
    r"\bnothing behind it\b": "no value",
    r"\bin the mean\b": "on average",
    r"\brow by row\b": "paired",
    r"\bwanted titles?\b|\bwanted items?\b": "relevant titles, relevant items",
    r"\btrainings\b(?!:)": "training runs",
    r"\b(?:is|are|was|were) (?:told|said)\b": "name who says it: the run prints ...",
    r"\bwhat (?:is|was|are) (?:asked|wanted|meant)\b": "name the thing",
    r"\bto be had\b": "available",
    r"(?<!there )\bis no (?:command|file|folder|item|JSON|list|model|number|path|recipe|run|text|title|variable)"
    r"\b": "is not",
    r"\b[Oo]ne an? (?!\d)\w+\b": "one per",
    r"\b(?:commands?|entry|entries|files?|GPUs?|items?|lines?|rollouts?|rows?|steps?|titles?|tokens?|words?)"
    r" an? (?:batch|core|device|file|GPU|line|list|node|process|prompt|row|start|step|turn)\b"
    r"(?= *(?:$|[.,;:)|]))": "per",
    r"(?:``|\}) a line\b": "per line",
    r"^#+ Of ": "a heading is a noun: SFT, not Of SFT",
    r"(?:^|[.:] )Of (?:an?|each|every|several) ": "put the subject first",
    r"(?:^|\. )Who (?:\w+s)\b(?=[^?:]*\.)": "a user who ..., a model that ...",
}
# File, phrase: where a phrase is right.
EXCEPTIONS: set[tuple[str, str]] = set()


def iter_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the prose of a page, or of the strings of a module that hold words."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from enumerate(_without_code(text).splitlines(), 1)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line.strip()


def _without_code(page: str) -> str:
    """Return the page with blocks of code and inline code blanked. Lines stay where they are."""
    page = re.sub(
        r"^```(?!text).*?^```", lambda match: "\n" * match[0].count("\n"), page, flags=re.MULTILINE | re.DOTALL
    )
    return re.sub(r"`[^`\n]+`", "``", page)


def find_phrases(path: Path) -> list[str]:
    """Return a line for each phrase in the file: where it is, the phrase, what to write."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    return [
        f"{name}:{number}: {match[0].strip()!r}: {instead}"
        for number, line in iter_texts(path)
        for pattern, instead in INSTEAD.items()
        for match in re.finditer(pattern, line)
        if (name, match[0].strip()) not in EXCEPTIONS
    ]


def iter_covered() -> Iterator[Path]:
    """Yield the files that are searched; this one has the phrases itself."""
    for name in COVERED:
        place = ROOT / name
        files = [place] if place.is_file() else sorted(place.rglob("*"))
        yield from (file for file in files if file.suffix in (".md", ".py") and file != Path(__file__))


@pytest.mark.parametrize("path", iter_covered(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_page_and_no_text_has_a_phrase_to_avoid(path: Path) -> None:
    assert find_phrases(path) == []


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("The index is built anew.", "anew"),
        ("All but for the first row.", "but for"),
        ("Titles, one a line.", "one a line"),
        ("A list has 20 titles, an item a line.", "item a line"),
        ("What differs is said.", "is said"),
        ("## Of SFT", "## Of"),
        ("Of a user's ratings the first counts.", "Of a"),
        ("Who reads 50 titles repeats them.", "Who reads"),
        ("RUN is no folder.", "is no folder"),
    ],
)
def test_a_phrase_to_avoid_is_found(text: str, phrase: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n{text}\n", encoding="utf-8")
    assert [line.split(": ")[1] for line in find_phrases(page)] == [repr(phrase)]
    module = tmp_path / "module.py"
    module.write_text(f'def act():\n    """Act.\n\n    {text}\n    """\n', encoding="utf-8")
    assert [line.split(": ")[1] for line in find_phrases(module)] == [repr(phrase)]


@pytest.mark.parametrize(
    "text",
    [
        "It runs `convrec anew` again.",
        "Who reads this page? Operators.",
        "It generates 400 tokens a second, three times a day.",
        "One of them is the list of the first row.",
        "Of the 500 conversations, three have no hit.",
    ],
)
def test_good_english_is_left_alone(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{text}\n\n```bash\nbut for anew\n```\n", encoding="utf-8")
    assert find_phrases(page) == []
