"""The served catalog: which items an id or title means, and changes, also by other processes and after a restart."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.inference.recommender import Recommender
from convrec.inference.served_catalog.journal import FILE, StateUnreadable
from convrec.inference.served_catalog.mentions import find_mentions_file
from convrec.inference.served_catalog.snapshot import Snapshot, Title
from tests.convrec.inference.served_catalog.films import FILMS, NEW, find_ids, ids, make_requests, write_catalog
from tests.user_errors import refuses

ROOT = Path(__file__).resolve().parents[4]


def written(snapshot: Snapshot, tokenizer: Any) -> set[str]:
    """Return the lines that the trie lets a list write."""
    trie = snapshot.trie.trie
    lines = [tokenizer.decode(tokens) for tokens in np.split(trie.tokens, trie.ends_S[:-1])[: len(trie.row_W)]]
    assert lines == [f"{snapshot.items[number].line}\n" for number in trie.item_W]
    return {line.removesuffix("\n") for line in lines}


def test_model_that_cannot_write_the_catalog_is_refused(
    serve: Any, tmp_path: Path, unread_model: Path, line_tokenizer: Any
) -> None:
    model = shutil.copytree(unread_model, tmp_path / "model")
    content = json.loads((model / "tokenizer.json").read_text())
    # byte-level BPE writes ä for 0xE4, the first byte of these titles
    vocabulary = {"<none>" if token == "ä" else token: id_ for token, id_ in content["model"]["vocab"].items()}
    (model / "tokenizer.json").write_text(json.dumps(content | {"model": content["model"] | {"vocab": vocabulary}}))
    catalog = write_catalog(tmp_path, [("a", "七人の侍", 1954), ("b", "七人", 1960), ("c", "Heat", 1995)])
    assert len(serve(file=catalog)) == 3
    with pytest.raises(UserError, match=r"/model: .* '七人の侍'"):
        Recommender.load(model, catalog, with_engine=False)
    (model / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"/model: "):
        Recommender.load(model, catalog, with_engine=False)


def test_items_are_found_by_id_by_line_and_by_title(serve: Any, tmp_path: Path) -> None:
    catalog = serve(file=write_catalog(tmp_path, [*FILMS, ("e", "Best of [1999]", 2010)]))
    assert (len(catalog), ids(catalog)) == (6, {"a", "b", "c", "d", "300", "e"})
    expected: dict[str | int, set[str]] = {
        "b": {"b"},
        "300": {"300"},
        300: {"300"},
        Title("a"): set(),
        Title("heat"): {"b", "c"},  # of any year
        Title("HEAT (1995)"): {"b", "c"},
        "Heat (1995)": {"b"},
        "heat (1987)": {"c"},
        "Heat": {"b", "c"},
        "Amelie": {"d"},
        "Heat (2005)": set(),
        "Nothing": set(),
        "1": set(),  # a row's number is not an id if there are ids
        "Best of [1999]": {"e"},
        "Best of [1999] (2010)": {"e"},
    }
    assert [(name, find_ids(catalog, name)) for name in expected] == [*expected.items()]
    catalog.put([{"item_id": "n", "title": "300", "year": 2006}])
    assert (find_ids(catalog, "300"), find_ids(catalog, Title("300"))) == ({"300"}, {"n"})
    assert catalog.snapshot.get("c").line == "Heat (1986)"
    catalog.delete([300])
    assert (find_ids(catalog, 300), find_ids(catalog, "300")) == (set(), {"n"})  # a number is not a title


def test_row_numbers_are_default_ids_but_digit_titles_are_not(serve: Any, tmp_path: Path) -> None:
    films = [("Toy Story", 1995), ("Heat", 1995), ("Heat", 1986), ("9", 2009), ("2", 2006), ("Up", 2009)]
    catalog = serve(file=write_catalog(tmp_path, [("", *film) for film in films], ids=False))
    assert ids(catalog) == {"0", "1", "2", "3", "4", "5"}
    assert find_ids(catalog, "Heat (1986)") == {"2"}
    assert (find_ids(catalog, "2"), find_ids(catalog, "9"), find_ids(catalog, "2 (2006)")) == ({"4"}, {"3"}, {"4"})
    assert (find_ids(catalog, 2), find_ids(catalog, 9)) == ({"2"}, set())  # a number is always a row
    assert (find_ids(catalog, "5"), find_ids(catalog, Title("5"))) == ({"5"}, set())  # ids in lists are texts
    requests = make_requests(catalog)
    assert requests.find_items("seen", ["2", 2, "5", Title("5"), Title("9")], catalog.snapshot) == {4, 2, 5, 3}
    assert requests.find_items("seen", [2, Title("5")], catalog.snapshot) == {2}


def test_changes_make_new_snapshots_and_leave_old_ones(serve: Any, line_tokenizer: Any) -> None:
    catalog = serve()
    before = catalog.snapshot
    catalog.put([NEW, {"item_id": "b", "title": "Heat", "year": 1996}])
    catalog.delete([" c ", 300])  # stripped as `put` does
    assert ids(catalog) == {"a", "b", "d", "n"}
    lines = {"Toy Story (1995)", "Heat (1996)", "Amélie (2001)", "Ronin (1998)"}
    assert written(catalog.snapshot, line_tokenizer) == lines
    assert written(before, line_tokenizer) == {f"{title} ({year})" for _, title, year in FILMS}
    (number,) = catalog.find("Up (2009)", before)  # a request that began before
    allowed = before.select_trie(frozenset([number]))
    assert allowed.trie.item_W.tolist() == [number]
    assert before.select_trie(frozenset([number])) is allowed
    assert (find_ids(catalog, "Heat"), find_ids(catalog, "Ronin (1998)"), find_ids(catalog, "c")) == (
        {"b"},
        {"n"},
        set(),
    )
    catalog.put([{"item_id": "c", "title": "Heat", "year": 1986}])
    assert find_ids(catalog, "Heat (1986)") == {"c"}
    catalog.put([{"item_id": "m", "title": "Heat", "year": 1986, "display": "director's cut"}])
    assert catalog.snapshot.get("m").line == "Heat [director's cut] (1986)"


@pytest.mark.parametrize(
    ("items", "code", "values"),
    [
        ([{"title": "Ronin", "year": 1998}], "item.id", ["items[0]", "None"]),
        ([NEW, {**NEW, "year": 1999}], "changes.repeated-id", ["items[1]", "'n'"]),
        ([{**NEW, "item_id": "n\n"}, {**NEW, "item_id": "a\nb"}], "item.id", ["items[1]", "'a\\nb'"]),
        ([{**NEW, "title": "A\u2028B"}], "item.title", ["items[0]", "'A\\u2028B'"]),
        ([{**NEW, "title": "A\nB"}], "item.title", ["items[0]", "'A\\nB'"]),
        ([{**NEW, "year": None}], "item.year", ["items[0]", "None", "1870 to 2100"]),
        ([{**NEW, "title": "1. Ronin"}], "item.misread-line", ["items[0]", "'1. Ronin (1998)'", "'Ronin'"]),
        ([{**NEW, "title": "HEAT", "year": 1995}], "changes.refused-item", ["'n'", "'b' has the same line"]),
        ([NEW, {**NEW, "item_id": "m"}], "changes.refused-item", ["'m'", "'n' has the same line"]),
        ([NEW, "Ronin"], "item.no-record", ["items[1]"]),
    ],
)
def test_an_invalid_item_is_named_and_no_item_is_added(serve: Any, items: list, code: str, values: list[str]) -> None:
    catalog = serve()
    before = catalog.snapshot
    with refuses(code, *values):
        catalog.put(items)
    assert catalog.snapshot is before


def test_an_item_is_found_by_its_aliases(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "aliases.parquet"
    columns = {"title": ["Spirited Away", "Heat"], "year": [2001, 1995], "item_id": ["a", "b"]}
    pq.write_table(pa.table(columns | {"aliases": [["Sen to Chihiro"], None]}), file)
    catalog = serve(file=file)
    assert find_ids(catalog, "sen to chihiro (2001)") == find_ids(catalog, "Sen to Chihiro") == {"a"}
    catalog.delete(["a"])
    assert find_ids(catalog, "Sen to Chihiro") == set()


def test_failed_change_leaves_journal_and_catalog_untouched(
    serve: Any, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = serve(state)
    before, journal, files = catalog.snapshot, (state / FILE).read_bytes(), list((tmp_path / "tries").iterdir())

    def fail(*_: Any) -> None:
        raise ValueError("the sequences 2 and 4 are equal")

    with monkeypatch.context() as patch:
        patch.setattr("convrec.inference.served_catalog.snapshot_builder.select_lines", fail)
        with pytest.raises(ValueError, match="are equal"):
            catalog.put([NEW])
    assert catalog.snapshot is before
    with monkeypatch.context() as patch:
        patch.setattr(catalog._journal, "append", fail)
        with pytest.raises(ValueError, match="are equal"):
            catalog.put([NEW])
    assert catalog.snapshot is before
    assert find_ids(catalog, "Ronin") == set()
    assert ((state / FILE).read_bytes(), list((tmp_path / "tries").iterdir())) == (journal, files)
    catalog.put([{**NEW, "title": "Ronin II"}])
    assert (find_ids(catalog, "Ronin II"), find_ids(catalog, "Ronin")) == ({"n"}, set())


def test_state_made_contradictory_by_a_new_catalog_still_loads(serve: Any, tmp_path: Path, state: Path) -> None:
    """The new line of b is taken in the next catalog, so b keeps its old line, and n, which has it, is left out."""
    catalog = serve(state)
    catalog.delete(["a"])
    catalog.put([{"item_id": "b", "title": "Ronin", "year": 1998}, {"item_id": "n", "title": "Heat", "year": 1995}])
    again = serve(state, write_catalog(tmp_path, [*FILMS, ("z", "Ronin", 1998)]))
    assert ids(again) == {"b", "c", "d", "300", "z"}
    _, problem = again.problems
    assert find_ids(again, "Heat (1995)") == {"b"}
    assert problem.startswith("left out: item_id 'n': item 'b' has the same line")
    assert json.loads((state / FILE).read_text().splitlines()[0])["catalog"] == "catalog.parquet"


@pytest.mark.parametrize("display", ["x | y", "x |", "| y", "x\ny"])
def test_a_display_with_the_delimiter_is_refused(serve: Any, display: str) -> None:
    catalog = serve(delimiter="|")
    with refuses("item.display", "items[0]", repr(display)):
        catalog.put([{**NEW, "display": display}])


def test_putting_an_unchanged_item_changes_nothing(serve: Any, state: Path) -> None:
    catalog = serve(state)
    catalog.put([NEW])
    before, journal = catalog.snapshot, (state / FILE).read_bytes()
    catalog.put([NEW, {"item_id": "b", "title": "Heat", "year": 1995}])
    assert catalog.snapshot is before
    assert (state / FILE).read_bytes() == journal
    catalog.put([NEW, {"item_id": "b", "title": "Heat", "year": 1996}])
    assert list(json.loads((state / FILE).read_text().splitlines()[-1])) == ["b"]


@pytest.fixture
def priced(serve: Any, tmp_path: Path, state: Path) -> Any:
    """serve() -> the catalog with columns for prices and links; all calls share the state."""
    file = write_catalog(tmp_path)
    prices, links = pa.array([1.5, 2.5, 3.5, 4.5, None]), pa.array(["u/a", None, None, None, None])
    table = pq.read_table(file).append_column("price", prices).append_column("link", links)
    pq.write_table(table, file)
    return lambda: serve(state, file)


def test_column_change_reuses_trie_and_reaches_other_processes(priced: Any) -> None:
    first, second = priced(), priced()
    before, trie_of_second = first.snapshot, second.snapshot.trie
    first.patch([{"item_id": "a", "price": 9}, {"item_id": "b", "link": "u/b"}])
    assert first.snapshot.trie is before.trie  # so that the engine need not load another
    for catalog in (first, second, priced()):
        assert [catalog.snapshot.get(name).columns for name in "ab"] == [
            {"price": 9.0, "link": "u/a"},
            {"price": 2.5, "link": "u/b"},
        ]
        assert find_ids(catalog, "Heat (1995)") == {"b"}
    assert second.snapshot.trie is trie_of_second
    assert before.get("a").columns["price"] == 1.5  # a request that began before


def test_patch_changes_single_fields_and_put_reports_blanks(priced: Any) -> None:
    catalog = priced()
    catalog.patch([{"item_id": "a", "title": "Toy Story 2", "year": 1999, "link": None}])
    item = catalog.snapshot.get("a")
    assert (item.line, item.columns) == ("Toy Story 2 (1999)", {"price": 1.5, "link": None})
    for records, code, value in (
        ([{"item_id": "a", "price": 7}, {"item_id": "x", "price": 7}], "changes.unknown-id", "items[1]: item_id 'x'"),
        ([{"item_id": "a", "prize": 7}], "columns.unknown", "'prize'"),
        ([{"item_id": "a", "title": None}], "item.title", "None"),
        ([{"item_id": "a"}, {"item_id": "a", "price": 1}], "changes.repeated-id", "items[1]: item_id 'a'"),
        (["a"], "changes.invalid-patch", "items[0]"),
    ):
        with refuses(code, value):
            catalog.patch(records)
    assert catalog.snapshot.get("a") == item
    assert catalog.put([{"item_id": "a", "title": "Toy Story 2", "year": 1999}, NEW]) == {"a": ["price"]}
    assert catalog.put([{"item_id": "a", "title": "Toy Story 2", "year": 1999, "price": 2}]) == {}


def test_bulk_changes_elsewhere_hide_items_instead_of_blocking(priced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = priced(), priced()
    recommender = Recommender(make_requests(reader), engine=None)  # type: ignore[arg-type]
    writer.patch([{"item_id": "a", "price": 9}])
    assert reader.read_without_waiting()[0].get("a").columns["price"] == 9.0  # few changes are applied at once
    monkeypatch.setattr("convrec.inference.served_catalog.items.SMALL_CHANGE_BYTES", 0)
    writer.patch([{"item_id": "a", "price": 10}, {"item_id": "b", "price": 2.5}])
    writer.delete(["c"])
    snapshot, changing = reader.read_without_waiting()
    assert (snapshot.get("a").columns["price"], changing) == (9.0, {"a", "c"})  # b is unchanged
    recommender.warm()
    assert reader.read_without_waiting() == (reader.latest, frozenset())
    assert reader.latest.get("c") is None


def test_a_journal_is_compacted_while_others_read_it(priced: Any, state: Path) -> None:
    writer, reader = priced(), priced()
    writer._journal._compact_bytes = writer._journal._compact_from = 4000
    sizes = []
    for price in range(200):
        writer.patch([{"item_id": "a", "price": price}])
        for thread in threading.enumerate():
            if thread.name == "convrec-journal":
                thread.join()
        sizes.append((state / FILE).stat().st_size)
        if price % 50 == 0:
            assert reader.snapshot.get("a").columns["price"] == price
    assert max(sizes) < 4200
    assert reader.snapshot.get("a").columns["price"] == priced().snapshot.get("a").columns["price"] == 199
    reader.delete(["b"])
    assert writer.snapshot.get("b") is None


def test_a_removal_returns_unknown_ids_and_can_be_repeated(serve: Any, state: Path) -> None:
    catalog = serve(state)
    assert catalog.delete(["a", "x", 7]) == ["x", "7"]
    journal = (state / FILE).read_bytes()
    assert catalog.delete(["a", "x"]) == ["a", "x"]
    assert ((state / FILE).read_bytes(), ids(catalog)) == (journal, {"b", "c", "d", "300"})
    with refuses("changes.last-item"):
        catalog.delete(["b", "c", "d", "300", "x"])
    assert len(catalog) == 4


def test_pages_have_every_item_once_despite_removals(serve: Any) -> None:
    catalog = serve()
    first = catalog.snapshot.page("", 2)
    catalog.delete([first[-1].item_id, "c"])
    rest = catalog.snapshot.page(first[-1].item_id, 9)
    assert [item.item_id for item in (*first, *rest)] == ["300", "a", "b", "d"]


def test_a_title_alone_means_all_its_editions(serve: Any, tmp_path: Path, state: Path) -> None:
    file = write_catalog(tmp_path, [*FILMS, ("m", "Heat", 1995)])
    table = pq.read_table(file)
    pq.write_table(table.append_column("display", pa.array([None, "7", *[None] * 3, "BK-1"])), file)
    catalog = serve(state, file)
    titles = {item.item_id: (item.title, item.clean_title) for item in catalog}
    assert (titles["m"], titles["b"], titles["c"]) == (("Heat [BK-1]", "Heat"), ("Heat [7]", "Heat"), ("Heat", "Heat"))
    catalog.put([{"item_id": "n", "title": "Heat", "year": 1995, "display": 8}])
    before = (state / FILE).read_bytes()
    catalog.put([{"item_id": "m", "title": "Heat", "year": 1995, "display": "BK-1"}])  # unchanged
    assert (state / FILE).read_bytes() == before
    for served in (catalog, serve(state, file)):
        assert served.snapshot.get("n").title == "Heat [8]"
        assert find_ids(served, "Heat") == find_ids(served, Title("heat")) == {"b", "c", "m", "n"}
        assert find_ids(served, "Heat (1995)") == {"b", "m", "n"}
        assert find_ids(served, "Heat [BK-1]") == find_ids(served, "Heat [BK-1] (1995)") == {"m"}


def test_changes_outlive_a_restart_and_reach_other_processes(serve: Any, state: Path) -> None:
    first, second = serve(state), serve(state)
    first.put([NEW])
    second.delete(["a"])
    second.put([{**NEW, "title": "Ronin II"}])
    assert ids(first) == ids(second) == ids(serve(state)) == {"b", "c", "d", "300", "n"}
    assert find_ids(first, "Ronin II (1998)") == {"n"}
    assert first.delete(["a"]) == ["a"]


def test_a_killed_writer_damages_nothing(serve: Any, state: Path) -> None:
    first = serve(state)
    first.put([NEW])
    with (state / FILE).open("a") as file:
        file.write('{"m": {"title": "Hal')
    assert ids(first) == ids(serve(state)) == {"a", "b", "c", "d", "300", "n"}
    first.delete(["n"])
    assert ids(serve(state)) == {"a", "b", "c", "d", "300"}
    (state / FILE).write_text((state / FILE).read_text() + "no JSON\n")
    with refuses("state.damaged-journal", FILE):
        serve(state)
    for _ in range(2):  # the error is repeated: reported only once, changes around the line would be lost
        with refuses("state.damaged-journal", FILE):
            len(first)
    (state / FILE).write_text((state / FILE).read_text().replace("no JSON\n", '{"a": null}\n'))
    assert ids(first) == {"b", "c", "d", "300"}


def test_failed_change_of_another_process_is_retried_later(
    serve: Any, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = serve(state), serve(state)
    second.delete(["a"])

    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("convrec.inference.served_catalog.snapshot.save_catalog_trie", fail)
        with pytest.raises(OSError, match="no space"):
            len(first)
    assert ids(first) == {"b", "c", "d", "300"}


@pytest.mark.parametrize("damage", ["remove", "cut"])
def test_removed_or_cut_journal_is_reported_and_not_restarted(serve: Any, state: Path, damage: str) -> None:
    catalog = serve(state)
    catalog.put([NEW])
    content = (state / FILE).read_bytes()
    if damage == "remove":
        (state / FILE).unlink()
    else:
        (state / FILE).write_bytes(content[:10])
    for ask in (lambda: len(catalog), lambda: catalog.delete(["a"])):
        with refuses("state.damaged-journal", FILE) as refused:
            ask()
        assert isinstance(refused.value, StateUnreadable)
    (state / FILE).write_bytes(content)
    catalog.delete(["a"])
    assert ids(serve(state)) == {"b", "c", "d", "300", "n"}


def test_concurrent_writers_lose_no_change(serve: Any, tmp_path: Path, state: Path) -> None:
    """Four processes make 25 changes each at the same time."""
    serve(state)
    code = """
import sys
from pathlib import Path
from convrec.inference.served_catalog.journal import Journal
journal = Journal(Path(sys.argv[1]), "catalog.parquet", sha256="", has_ids=True, dated=True)
for number in range(25):
    with journal.lock():
        journal.append({f"{sys.argv[2]}-{number}": {"title": f"Film {sys.argv[2]} {number}", "year": 2000}})
"""
    command = [sys.executable, "-c", code, str(state)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen([*command, str(number)], env=environment) for number in range(4)]
    assert [writer.wait(timeout=300) for writer in writers] == [0] * 4
    assert len(serve(state)) == 105


def test_a_catalog_that_is_replaced_while_it_is_read_is_refused(
    serve: Any, tmp_path: Path, replace_when_read: Callable[[Path, pa.Table], None]
) -> None:
    """Otherwise the titles were those of one file, and the prices those of the next."""
    file = tmp_path / "catalog.parquet"
    first = pa.table({"item_id": ["a", "b"], "title": ["Emma", "Ran"], "year": [1996, 1985], "price": [1.0, 2.0]})
    pq.write_table(first, file)
    replace_when_read(file, first.take([1, 0]))
    with refuses("catalog.changed", file):
        serve(file=file)
    snapshot = serve(file=file).snapshot  # the export is over
    assert {item.title: item.columns["price"] for item in snapshot.items.values()} == {"Emma": 1.0, "Ran": 2.0}


def test_changes_belong_to_the_catalog_that_was_read_though_its_file_was_replaced(
    serve: Any, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ids, item 0 is another one in the new file, and a restart must not apply its changes."""
    file = write_catalog(tmp_path, ids=False)
    read_table = pq.read_table

    def read_after_export(source: Any, **options: Any) -> pa.Table:
        """A shop's export replaces the catalog before its counts are read."""
        if source == find_mentions_file(file):
            write_catalog(tmp_path, FILMS[::-1], ids=False)
        return read_table(source, **options)

    with monkeypatch.context() as export:
        export.setattr(pq, "read_table", read_after_export)
        serve(state, file).delete(["0"])
    with refuses("state.other-catalog", FILE, "item_id"):
        serve(state, file)


@pytest.mark.parametrize(
    ("ids", "name", "year", "value"),
    [
        (True, "films.parquet", 1995, "catalog.parquet, not to films.parquet"),
        (True, "catalog.parquet", None, "with years, but it is now without years"),
        (False, "catalog.parquet", 1995, "item_id"),
    ],
)
def test_changes_of_another_catalog_are_refused(
    serve: Any, tmp_path: Path, state: Path, ids: bool, name: str, year: int | None, value: str
) -> None:
    serve(state, write_catalog(tmp_path, ids=ids)).delete(["0" if not ids else "a"])
    other = write_catalog(tmp_path, [("n", "Emma", year)], ids)
    with refuses("state.other-catalog", FILE, value):
        serve(state, other.rename(tmp_path / name))
