"""The manual: its commands parse, its reference pages are the code's, its links lead somewhere."""

import inspect
import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

import convrec
from convrec.base.errors import UserError
from convrec.base.options import HELP, parse
from recipes import cli
from recipes.launch.recipe import RECIPES
from recipes.launch.settings import compose_files
from recipes.launch.variables import VARIABLES, find_misspelt_variables, overrides_from_environment
from recipes.options.cluster import DoctorOptions, SubmitOptions

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = [path for path in (ROOT / "docs").rglob("*.md") if "reference" not in path.parts]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
SCRIPTS = {recipe.script: recipe.command for recipe in RECIPES.values()}
FLAGS = {"--dry-run", "--print-config", "--help", "--detach", "--json"}
OTHER_VARIABLES = re.compile(
    r"(RAY|LLM|TEACHER|JUDGE|VERL|NCCL|GLOO)_\w+|PYTHON|REDIAL|REWARDBENCH|(GRPO_)?(LICENCE|LICENSE)|BASE_URL|run"
)
ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
CONTROL = {"for", "do", "done", "if", "then", "fi"}


def load_reference() -> ModuleType:
    spec = spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = load_reference()


def shell_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(block, line) of a page's shell blocks (```, ```bash, ```sh), continued lines joined."""
    blocks = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for number, (language, text) in enumerate(blocks):
        if language in ("", "bash", "sh"):
            for line in text.replace("\\\n", " ").splitlines():
                yield number, line


def commands(path: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    """(variables that it sees, words) of every command of ours on a page."""
    exported: dict[str, str] = {}
    block = -1
    for number, line in shell_lines(path):
        if number != block:
            block, exported = number, {}
        if not re.search(r"\bconvrec |python3? -m recipes|bash (\S*/)?run_|^\s*(export )?[A-Z_]+=|^make ", line):
            continue
        words = shlex.split(line, comments=True)
        for command in split_at_operators(words):
            command = [word for word in command if word not in CONTROL]
            if command[:1] == ["export"]:
                exported |= dict(match.groups() for word in command[1:] if (match := ASSIGNMENT.fullmatch(word)))
                continue
            own: dict[str, str] = {}
            while command and (match := ASSIGNMENT.fullmatch(command[0])):
                own[match[1]] = match[2]
                command.pop(0)
            if command:
                yield exported | own, command


def split_at_operators(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in words:
        if word in ("&&", "||", "|", ";", "&", ">"):
            yield command
            command = []
        elif word.endswith(";"):
            yield [*command, word[:-1]]
            command = []
        else:
            command.append(word)
    yield command


def command_of(words: list[str]) -> tuple[str, list[str]] | None:
    """(command, its arguments) of a command of ours; None for another program."""
    program, *rest = words
    if program == "bash" and rest and (script := next((name for name in SCRIPTS if rest[0].endswith(name)), None)):
        return SCRIPTS[script], rest[1:]
    assert program not in ("python", "python3") or rest[:1] != ["-m"] or not rest[1].startswith("recipes")
    if program == "convrec":
        command = next((name for name in cli.COMMANDS if rest[: len(name.split())] == name.split()), "")
        assert command or rest[:1] in (["--help"], ["--version"], ["COMMAND"]), f"no command: {shlex.join(words)}"
        return (command, rest[len(command.split()) :]) if command else None
    return None


def check(variables: dict[str, str], words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise UserError, AssertionError or SystemExit for a command that does not parse."""
    if words[0] == "make" and len(words) > 1:
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
    found = command_of(words)
    if found is None:
        return
    command, arguments = found
    unknown = [name for name in variables if not OTHER_VARIABLES.fullmatch(name)]
    assert not (set(unknown) - {variable.name for variable in VARIABLES}), f"unknown variables: {unknown}"
    assert not find_misspelt_variables(variables)
    if command in cli.OPTIONS:
        if set(HELP) & set(arguments):
            return
        options = parse(cli.resolve_options(command, arguments), arguments)
        if not isinstance(options, DoctorOptions | SubmitOptions):
            return
        arguments = list(options.words)
        recipe = RECIPES[arguments.pop(0) if arguments and arguments[0] in RECIPES else "rank_grpo"]
    else:
        recipe = reference.commands.TRAININGS[command]
    placeholders = {"...", "[key=value", "[hydra", "overrides]"}
    overrides = [word for word in arguments if word not in FLAGS | placeholders]
    overrides_from_environment(recipe, variables)
    if overrides:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        compose_files(recipe, overrides)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_of_the_manual_parses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    for variables, words in commands(path):
        with monkeypatch.context() as patch:
            try:
                check(variables, words, patch)
            except (UserError, AssertionError, SystemExit) as error:
                pytest.fail(f"{path.relative_to(ROOT)}: {shlex.join(words)}: {error}")


@pytest.mark.parametrize(
    "line",
    [
        "convrec evaluate --modell x --data d --catalog c --out o",
        "convrec no-such-command",
        "convrec data own --conversation x",
        "LEARNING_RATE=1 bash run_sft.sh",
        "LR=fast bash run_sft.sh",
        "bash run_rank_grpo.sh convrec.num_itemz=3",
        "make no-such-target",
    ],
)
def test_a_command_that_does_not_parse_is_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text(f"```bash\n{line}\n```\n")
    ((variables, words),) = commands(tmp_path / "page.md")
    with pytest.raises((UserError, AssertionError, SystemExit)):
        check(variables, words, monkeypatch)


def test_every_ray_that_the_manual_starts_reports_nothing() -> None:
    """Neither statistics nor, with no address to send it to, the message that they are off."""
    starts = 0
    for path in WRITTEN:
        lines = list(shell_lines(path))
        for block, line in lines:
            if line.startswith("ray start --head"):
                starts += 1
                assert "--disable-usage-stats" in line, path
                assert any("RAY_USAGE_STATS_REPORT_URL=off" in text for number, text in lines if number == block), path
    assert starts >= 2
    for path in (ROOT / "docs" / "examples").glob("*.*"):
        text = path.read_text(encoding="utf-8")
        if "start --head" in text or "headGroupSpec" in text:
            for name, value in (("RAY_USAGE_STATS_ENABLED", "0"), ("RAY_USAGE_STATS_REPORT_URL", "off")):
                assert f"{name}={value} " in text or f'name: {name}, value: "{value}"' in text, path


def test_the_tutorials_commands_are_read() -> None:
    """Of each tutorial and of the README: the checks above would pass a page whose commands they do not find."""
    for page in [*(ROOT / "docs" / "tutorials").glob("*.md"), ROOT / "README.md"]:
        assert sum(command_of(words) is not None for _, words in commands(page)) >= 4, page


def test_the_reference_pages_are_what_the_code_says() -> None:
    wanted = reference.pages()
    there = [*reference.REFERENCE.rglob("*.md"), reference.DOCS / "explanation" / "status.md"]
    found = {path.relative_to(reference.DOCS).as_posix(): path.read_text(encoding="utf-8") for path in there}
    assert found == wanted, "run: make reference"


def test_the_python_pages_have_every_exported_name_and_names_with_docstrings() -> None:
    names = [name for page in reference.api.PAGES.values() for name in page.names]
    assert len(set(names)) == len(names)
    assert {f"{module}.{name}" for name, module in convrec._MODULES.items()} <= set(names)
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert not attribute.startswith("_")
        assert inspect.getdoc(getattr(import_module(module), attribute)), name


def test_an_option_without_a_help_text_is_refused() -> None:
    """The pages above are made of every command's record."""

    @dataclass(frozen=True, kw_only=True)
    class NewOptions:
        """A new command."""

        COMMAND: ClassVar[str] = "data new"

        share: float = 0.1

    with pytest.raises(ValueError, match=re.escape("convrec data new: --share has no help")):
        list(reference.commands.option_lines(NewOptions))


def anchors(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower())
        for heading in headings
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'\bsrc(?:set)?="([^"]+)"', text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), f"{path.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{path.name}: {target}"


def test_the_code_names_pages_that_are_there() -> None:
    named = re.compile(r"(?:docs|notes)/[\w/-]+\.\w+")
    for folder in ("convrec", "recipes", "data_prep", "reward", "conf", "scripts", "benchmarks", "tests"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".yaml", ".sh") and path != Path(__file__):
                missing = [
                    name for name in named.findall(path.read_text(encoding="utf-8")) if not (ROOT / name).exists()
                ]
                assert not missing, f"{path.relative_to(ROOT)}: {missing}"


def test_what_the_manual_says_to_be_held_by_a_test_has_that_test() -> None:
    there = [path.as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    named = {name for path in WRITTEN for name in re.findall(r"`([\w/]*test_\w+\.py)", path.read_text("utf-8"))}
    assert len(named) > 10
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in there)] == []


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_manual_says_what_is_known_now(path: Path) -> None:
    """No laboratory notes, and lines that fit; rows of tables and blocks of code keep theirs."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert long == []
    if path.name == "status.md":  # what was run when is what that page is for
        return
    diary = re.findall(r"(?i)slow days?|slow hour|tried and taken out|another day|\b20\d\d-\d\d-\d\d\b(?! --)", text)
    assert diary == []


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_list_begins_after_a_blank_line(path: Path) -> None:
    """Without one, the site's Markdown makes the list a part of the paragraph before it."""
    text = re.sub(r"^```.*?^```", "```", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    blocks = [block.splitlines() for block in re.split(r"\n\s*\n", text)]
    item = re.compile(r"(?:- |\d+\. )")
    assert [lines for lines in blocks if any(map(item.match, lines)) and not item.match(lines[0].lstrip())] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "how-to").glob("*.md")), ids=lambda path: path.name)
def test_a_guide_is_short(path: Path) -> None:
    """One task a page; a table is no place for paragraphs."""
    lines = path.read_text(encoding="utf-8").splitlines()
    cells = [cell for line in lines if line.startswith("|") for cell in re.split(r"(?<!\\)\|", line)]
    assert sum(len(line.split()) for line in lines) <= 1000
    assert [cell for cell in cells if len(cell.split()) > 15] == []


def test_the_notebook_is_stored_without_outputs_in_short_cells() -> None:
    cells = json.loads((ROOT / "docs" / "tutorials" / "demo.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert all(len(cell["source"]) <= 10 for cell in code)
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)


def test_the_navigation_names_exactly_the_pages() -> None:
    """A page that `nav` leaves out is found by nobody; one that is not there breaks the site."""
    nav = re.search(r"^nav:.*\n((?:[ ]+.*\n)+)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert nav
    named = re.findall(r"[\w/-]+\.md", nav[1])
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(pages)


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert os.path.isfile(ROOT / "docs" / "images" / "demo.svg")
