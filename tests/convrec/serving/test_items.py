"""The served catalog: who an id or a title is, and its changes, also those of another process and after a restart."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.constrained.walk import Walk
from convrec.errors import UserError
from convrec.lists.settings import ListSettings
from convrec.serving.items import ServedCatalog, Snapshot
from convrec.serving.journal import FILE

ROOT = Path(__file__).resolve().parents[3]
FILMS = [("a", "Toy Story", 1995), ("b", "Heat", 1995), ("c", "Heat", 1986), ("d", "Amélie", 2001), ("300", "Up", 2009)]
NEW = {"item_id": "n", "title": "Ronin", "year": 1998, "genres": ["action"]}


def write_catalog(folder: Path, films: list[tuple] = FILMS, ids: bool = True) -> Path:
    item_ids, titles, years = zip(*films, strict=True)
    columns = {"title": titles, "year": pa.array(years, pa.int32())} | ({"item_id": item_ids} if ids else {})
    pq.write_table(pa.table(columns), folder / "catalog.parquet")
    return folder / "catalog.parquet"


@pytest.fixture
def serve(tmp_path: Path, line_tokenizer: Any) -> Any:
    """serve(state) -> ServedCatalog of FILMS, or of another file."""

    def serve(state: Path | None = None, file: Path | None = None) -> ServedCatalog:
        tries = tmp_path / "tries"
        return ServedCatalog(file or write_catalog(tmp_path), line_tokenizer, ListSettings(), tries, state)

    return serve


def ids(catalog: ServedCatalog) -> set[str]:
    return {item.item_id for item in catalog}


def found(catalog: ServedCatalog, text: str) -> set[str]:
    snapshot = catalog.snapshot
    return {snapshot.items[number].item_id for number in catalog.find(text, snapshot)}


def written(snapshot: Snapshot, tokenizer: Any) -> set[str]:
    """The lines of lists of one item, by following every branch of the trie."""
    trie = snapshot.trie.trie
    lines = set()
    for row in range(len(trie.row_W)):
        walk, text = Walk(trie, 1), []
        start, stop = trie.ends_S[len(trie.row_W) + row - 1], trie.ends_S[len(trie.row_W) + row]
        for token in trie.tokens[start:stop].tolist():
            walk.advance(token)
            text.append(token)
        assert snapshot.items[walk.items[0]].line == tokenizer.decode(text, skip_special_tokens=True)
        lines.add(tokenizer.decode(text, skip_special_tokens=True))
    return lines


def test_an_id_a_title_with_its_year_and_a_title_alone(serve: Any) -> None:
    catalog = serve()
    assert (len(catalog), ids(catalog)) == (5, {"a", "b", "c", "d", "300"})
    expected = {
        "b": {"b"},
        "300": {"300"},
        "Heat (1995)": {"b"},
        "heat (1987)": {"c"},
        "Heat": {"b", "c"},
        "Amelie": {"d"},
        "Heat (2005)": set(),
        "Nothing": set(),
        "1": set(),  # a row's number is no id where there are ids
    }
    assert {text: found(catalog, text) for text in expected} == expected
    assert catalog.get("c").line == "Heat (1986)"


def test_without_ids_the_numbers_of_rows_are(serve: Any, tmp_path: Path) -> None:
    catalog = serve(file=write_catalog(tmp_path, ids=False))
    assert ids(catalog) == {"0", "1", "2", "3", "4"}
    assert found(catalog, "2") == found(catalog, "Heat (1986)") == {"2"}


def test_changes_make_new_snapshots_and_leave_old_ones(serve: Any, line_tokenizer: Any) -> None:
    catalog = serve()
    before = catalog.snapshot
    catalog.put([NEW, {"item_id": "b", "title": "Heat", "year": 1996}])
    catalog.delete(["c", 300])
    assert ids(catalog) == {"a", "b", "d", "n"}
    lines = {"Toy Story (1995)", "Heat (1996)", "Amélie (2001)", "Ronin (1998)"}
    assert written(catalog.snapshot, line_tokenizer) == lines
    assert written(before, line_tokenizer) == {f"{title} ({year})" for _, title, year in FILMS}
    assert (found(catalog, "Heat"), found(catalog, "Ronin (1998)"), found(catalog, "c")) == ({"b"}, {"n"}, set())
    catalog.put([{"item_id": "c", "title": "Heat", "year": 1986}])
    assert found(catalog, "Heat (1986)") == {"c"}
    assert (before.number, catalog.version) == (0, 3)


def test_tries_leave_the_folder_with_their_last_user(serve: Any, tmp_path: Path) -> None:
    catalog = serve()
    before = catalog.snapshot
    catalog.put([NEW])
    assert before.trie.path.exists()
    old = before.trie.path
    del before
    assert not old.exists()
    assert catalog.snapshot.trie.path.exists()


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([{"title": "Ronin", "year": 1998}], "items[0]: item_id is None; give a text or a number"),
        ([NEW, {**NEW, "year": 1999}], "items[1]: item_id 'n' is there twice"),
        ([{**NEW, "title": "A\nB"}], "items[0]: the title is 'A\\nB'; write a text of one line"),
        ([{**NEW, "year": None}], "items[0]: the year is None; write one from 1870 to 2100"),
        ([{**NEW, "title": "1. Ronin"}], "items[0]: '1. Ronin (1998)' is read as 'Ronin'"),
        ([{**NEW, "title": "HEAT", "year": 1995}], "item_id 'n': its line in a list is that of item 'b'"),
        ([NEW, {**NEW, "item_id": "m"}], "item_id 'm': its line in a list is that of item 'n'"),
        ([NEW, "Ronin"], "items[1]: write {"),
    ],
)
def test_an_item_that_cannot_be_added_is_named_and_none_is(serve: Any, items: list, problem: str) -> None:
    catalog = serve()
    with pytest.raises(UserError) as error:
        catalog.put(items)
    assert problem in str(error.value)
    assert (catalog.version, len(catalog)) == (0, 5)


def test_a_display_tells_two_items_of_one_line_apart(serve: Any) -> None:
    catalog = serve()
    catalog.put([{"item_id": "m", "title": "Heat", "year": 1995, "display": "director's cut"}])
    assert catalog.get("m").line == "Heat [director's cut] (1995)"


def test_removing_what_is_not_there_removes_nothing(serve: Any) -> None:
    catalog = serve()
    with pytest.raises(UserError, match="item_id 'x': the catalog has no such item"):
        catalog.delete(["a", "x"])
    with pytest.raises(UserError, match="the last item"):
        catalog.delete(["a", "b", "c", "d", "300"])
    assert len(catalog) == 5


def test_changes_outlive_a_restart_and_reach_other_processes(serve: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first, second = serve(state), serve(state)
    first.put([NEW])
    second.delete(["a"])
    second.put([{**NEW, "title": "Ronin II"}])
    assert ids(first) == ids(second) == ids(serve(state)) == {"b", "c", "d", "300", "n"}
    assert found(first, "Ronin II (1998)") == {"n"}
    with pytest.raises(UserError, match="no such item"):
        first.delete(["a"])


def test_a_writer_that_was_killed_spoils_nothing(serve: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = serve(state)
    first.put([NEW])
    with (state / FILE).open("a") as file:
        file.write('{"m": {"title": "Hal')
    assert ids(first) == ids(serve(state)) == {"a", "b", "c", "d", "300", "n"}
    first.delete(["n"])
    assert ids(serve(state)) == {"a", "b", "c", "d", "300"}
    (state / FILE).write_text((state / FILE).read_text() + "no JSON\n")
    with pytest.raises(UserError, match=r"catalog.jsonl: a line that is no JSON"):
        serve(state)


def test_many_writers_lose_no_change(serve: Any, tmp_path: Path) -> None:
    """Four processes of 25 changes each, at once."""
    state = tmp_path / "state"
    serve(state)
    code = """
import sys
from pathlib import Path
from convrec.serving.journal import Journal
journal = Journal(Path(sys.argv[1]), Path(sys.argv[2]), True)
for number in range(25):
    with journal.writing():
        journal.append({f"{sys.argv[3]}-{number}": {"title": f"Film {sys.argv[3]} {number}", "year": 2000}})
"""
    command = [sys.executable, "-c", code, str(state), str(tmp_path / "catalog.parquet")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen([*command, str(number)], env=environment) for number in range(4)]
    assert [writer.wait(timeout=60) for writer in writers] == [0] * 4
    assert len(serve(state)) == 105


def test_changes_of_another_catalog_without_ids_are_refused(serve: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    serve(state, write_catalog(tmp_path, ids=False)).delete(["0"])
    other = write_catalog(tmp_path, FILMS[1:], ids=False)
    with pytest.raises(UserError, match="Remove the file, or give items ids"):
        serve(state, other)


def test_with_ids_changes_go_with_a_new_catalog(serve: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    before = serve(state)
    before.delete(["a"])
    before.put([NEW])
    films = [*FILMS, ("z", "Ronin", 1998)]
    again = serve(state, write_catalog(tmp_path, films))
    assert ids(again) == {"b", "c", "d", "300", "z"}
    assert again.problems == ["item_id 'n' was added and has the line of item 'z': left out"]
    assert json.loads((state / FILE).read_text().splitlines()[0])["catalog"] == "catalog.parquet"
