"""A retrieval's folder: the round trip, another catalog, damage, and nothing pickled."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.retrieval.conversations import Conversation, build_item_texts
from convrec.retrieval.folder import load, load_notes, save, save_fusion
from convrec.retrieval.retriever import PARTS, Choice, Fusion, Retriever, fit
from convrec.titles.catalog import load_catalog
from convrec.titles.matching import Matcher
from tests.user_errors import refuses

FILMS = [("Alien", 1979), ("Heat", 1995), ("Jaws", 1975), ("Balloon house", 2009)]
CHOICE = {"neighbours": 3, "constant": 10.0, "weights": dict.fromkeys(PARTS, 1.0)}
ROWS = [
    Conversation("space monsters", [3], "c1", [0]),
    Conversation("robbery detective", [0], "c2", [1]),
    Conversation("robbery sharks", [0, 1], "c3", [1, 2]),
]
ASKED = [
    Conversation("a robbery", [0]),
    Conversation("space sharks house", []),
    Conversation("robbery detective", [0], "c2"),
    Conversation("", [3, 1]),
]


def catalog(path: Path, films: list[tuple[str, int]] = FILMS) -> Matcher:
    titles, years = zip(*films, strict=True)
    pq.write_table(pa.table({"title": titles, "year": pa.array(years, pa.int32())}), path)
    return Matcher(load_catalog(path))


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path, Matcher]:
    """Returns the folder, the catalog's file and the matcher."""
    file, folder = tmp_path / "catalog.parquet", tmp_path / "catalog.retrieval"
    folder.mkdir()
    matcher = catalog(file)
    save(folder, fit(ROWS, len(ROWS), len(FILMS)), matcher.catalog, {"choice": CHOICE})
    return folder, file, matcher


def test_a_saved_retriever_returns_the_same_lists(saved: tuple[Path, Path, Matcher]) -> None:
    folder, file, matcher = saved
    loaded, warnings = load(folder, file, matcher)
    before = Retriever(fit(ROWS, len(ROWS), len(FILMS)), build_item_texts(file, matcher), Choice(**CHOICE))  # type: ignore[arg-type]
    for asked in ASKED:
        assert loaded.lists(asked) == before.lists(asked)
        assert loaded.rank(asked) == before.rank(asked)
    assert (warnings, loaded.fusion, loaded.choice) == ([], None, before.choice)


def test_no_file_is_pickled(saved: tuple[Path, Path, Matcher]) -> None:
    folder, _, _ = saved
    assert {path.suffix for path in folder.iterdir()} == {".json", ".npy", ".npz", ".txt"}
    for path in folder.glob("*.npy"):
        assert np.load(path, allow_pickle=False).dtype != object


def test_changed_catalog_is_reported_and_known_items_are_kept(
    saved: tuple[Path, Path, Matcher], tmp_path: Path
) -> None:
    """Heat is gone, the others have moved, and Robbery is new: only its words are known."""
    folder, file, _ = saved
    films = [("Robbery", 2020), ("Jaws", 1975), ("Balloon house", 2009), ("Alien", 1979)]
    loaded, (warning,) = load(folder, file, catalog(file, films))
    for part in (str(folder), f"{file} has 1 new items", "lost 1"):
        assert part in warning
    lists = loaded.lists(Conversation("a robbery", [3]))  # Alien
    assert lists == {"neighbours": [1], "ridge": [1], "text": [0], "popularity": [1, 3]}
    catalog(file, FILMS[::-1])
    again, warnings = load(folder, file, Matcher(load_catalog(file)))
    assert warnings == []  # the order of the catalog does not matter
    before, _ = load(folder, *(path := tmp_path / "c.parquet", catalog(path)))
    for asked in ASKED:
        turned = asked._replace(named=[3 - item for item in asked.named])
        assert {3 - item for item in again.rank(turned)} == {*before.rank(asked)}


def test_a_weight_goes_only_into_the_fit_that_it_was_chosen_with(saved: tuple[Path, Path, Matcher]) -> None:
    folder, file, matcher = saved
    retriever, _ = load(folder, file, matcher)
    for weight in (0.25, 0.75):  # a weight that another evaluation has stored is replaced
        save_fusion(folder, retriever.notes, Fusion(weight, 60.0), {"model": "m"})
        stored = load_notes(folder, fuses=True)
        assert (stored["fusion"], stored["fusion_of"]) == ({"weight": weight, "constant": 60.0}, {"model": "m"})
    fitted_again = retriever.notes | {"sha256": {"train 0": "other"}}
    (folder / "retrieval.json").write_text(json.dumps(fitted_again))
    with refuses("retrieval.changed", folder):
        save_fusion(folder, retriever.notes, Fusion(0.5, 60.0), {"model": "m"})
    assert load_notes(folder) == fitted_again


def test_another_catalog_and_damage_are_refused(saved: tuple[Path, Path, Matcher]) -> None:
    folder, file, matcher = saved
    with refuses("retrieval.other-catalog", folder, file):
        load(folder, file, catalog(file, [("Emma", 1996)]))
    with refuses("retrieval.no-weight", folder):
        load(folder, file, matcher, fuses=True)
    for path in (folder / "wanted_RM.npz", folder / "conversation_R.npy"):
        content = path.read_bytes()
        for bad in (content[:-3], b"", pickle.dumps([1, 2])):
            path.write_bytes(bad)
            with refuses("retrieval.damaged-folder", f"--retrieval {folder}"):
                load(folder, file, matcher)
        path.unlink()
        with refuses("retrieval.damaged-folder", folder):
            load(folder, file, matcher)
        path.write_bytes(content)
    notes = json.loads((folder / "retrieval.json").read_text())
    items, items_K = (folder / "items.txt").read_text(), np.load(folder / "items_K.npy")
    (folder / "items.txt").write_text(items.rpartition("\n")[0])
    with refuses("retrieval.damaged-folder", folder):
        load(folder, file, matcher)
    (folder / "items.txt").write_text(items)
    np.save(folder / "items_K.npy", items_K + 99)
    with refuses("retrieval.damaged-folder", folder):
        load(folder, file, matcher)
    for bad_notes in (notes | {"format": 0}, {}, []):
        (folder / "retrieval.json").write_text(json.dumps(bad_notes))
        with refuses("retrieval.no-notes", folder):
            load_notes(folder)
    for nowhere in (folder / "none", file):
        with refuses("retrieval.no-notes", nowhere):
            load_notes(nowhere)


def test_the_fusion_with_a_model_is_loaded(saved: tuple[Path, Path, Matcher]) -> None:
    folder, file, matcher = saved
    notes: dict[str, Any] = load_notes(folder) | {"fusion": {"weight": 0.3, "constant": 60.0}}
    (folder / "retrieval.json").write_text(json.dumps(notes))
    loaded, _ = load(folder, file, matcher, fuses=True)
    assert loaded.fusion == Fusion(0.3, 60.0)


def test_an_items_words_come_from_its_title_and_text_columns(tmp_path: Path) -> None:
    file = tmp_path / "catalog.parquet"
    columns = {
        "item_id": ["b1", "b2"],
        "title": ["Emma", "Dune"],
        "year": pa.array([1996, 1965], pa.int32()),
        "display": [None, "novel"],
        "genres": [["Romance", None], None],
        "plot": ["a match", "sand"],
        "price": [1.5, 2.5],
    }
    pq.write_table(pa.table(columns), file)
    emma, dune = ([*text.split()] for text in build_item_texts(file, Matcher(load_catalog(file))))
    assert sorted(emma) == ["Emma", "Romance", "a", "match"]
    assert sorted(dune) == ["Dune", "[novel]", "novel", "sand"]


def test_duplicate_and_undated_rows_are_not_separate_items(tmp_path: Path) -> None:
    film = [("Amélie", 2001, "a"), ("Le fabuleux destin", 2001, "a"), ("Heat", 1995, "h"), ("Heat", None, "u")]
    titles, years, ids = zip(*film, strict=True)
    table = pa.table({"title": titles, "year": pa.array(years, pa.int32()), "item_id": ids})
    pq.write_table(table, tmp_path / "catalog.parquet")
    matcher = Matcher(load_catalog(tmp_path / "catalog.parquet"))
    assert [words.split() for words in build_item_texts(tmp_path / "catalog.parquet", matcher)] == [
        ["Amélie", "Le", "fabuleux", "destin"],
        [],
        ["Heat"],
        [],
    ]


def test_rows_without_named_items_can_be_saved(saved: tuple[Path, Path, Matcher], tmp_path: Path) -> None:
    """The ridge's arrays are then empty."""
    _, file, matcher = saved
    rows = [row._replace(named=[]) for row in ROWS]
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", fit(rows, len(rows), len(FILMS)), matcher.catalog, {"choice": CHOICE})
    assert load(tmp_path / "empty", file, matcher)[0].rank(ASKED[0])
