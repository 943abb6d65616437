"""A fitted retrieval as a folder: JSON, lines, and arrays that are mapped into memory. Nothing is pickled.

retrieval.json  what it was fitted on, and what was chosen on validation, of parts and with a model
NAME.txt        a line each: the words of the conversations, the catalog's items
NAME.npy, .npz  arrays, and sparse matrices as scipy writes them
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from scipy import sparse

from convrec.base.errors import UserError
from convrec.base.files import read_json, write_json, write_text
from convrec.retrieval.conversations import item_texts
from convrec.retrieval.parts import vectorizer
from convrec.retrieval.retriever import Choice, Fusion, Retriever
from convrec.titles.catalog import Catalog
from convrec.titles.forms import normalise
from convrec.titles.matching import Matcher

NOTES = "retrieval.json"
FORMAT = 2
ARRAYS = ("idf", "conversation_R", "text_R", "prefix_P", "prefix_row_P", "items_K", "inverse_KK", "weights_KK")
MATRICES = ("rows_RV", "wanted_RM", "named_RK")


def save(folder: Path, fitted: Mapping[str, Any], catalog: Catalog, notes: Mapping[str, Any]) -> None:
    """fitted: of `retriever.fit`. notes: JSON, with the fields of a Choice as `choice`."""
    words = fitted["vectorizer"]
    write_text(folder / "words.txt", "\n".join(words.get_feature_names_out()))
    write_text(folder / "items.txt", "\n".join(map(normalise, catalog.lines)))
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", words.idf_ if name == "idf" else fitted[name], allow_pickle=False)
    for name in MATRICES:
        sparse.save_npz(folder / f"{name}.npz", fitted[name], compressed=False)
    write_json(folder / NOTES, {"format": FORMAT, "rows": len(fitted["conversation_R"]), **notes})


def load_notes(folder: Path, fuses: bool = False) -> dict[str, Any]:
    """retrieval.json. Raises UserError where there is none of this version, and none of a `fusion` that is needed."""
    notes = read_json(folder / NOTES) if (folder / NOTES).is_file() else {}
    if not isinstance(notes, dict) or notes.get("format") != FORMAT:
        raise UserError(
            "retrieval.no-notes",
            f"--retrieval {folder}: no {NOTES} of this version. Make one with `convrec retrieval fit`.",
        )
    if fuses and "fusion" not in notes:
        raise UserError(
            "retrieval.no-weight",
            f"--retrieval {folder}: no weight for the fusion with a model's list. Choose one with `convrec evaluate "
            "--weigh`.",
        )
    return notes


def load(folder: Path, file: str | Path, matcher: Matcher, fuses: bool = False) -> tuple[Retriever, list[str]]:
    """The retriever over a catalog, this file's and matcher's, and a warning where it is not as it was. Raises
    UserError for a damaged folder, for one of another data set, and as `load_notes` does."""
    notes = load_notes(folder, fuses)
    catalog = matcher.catalog
    try:
        words, before = ((folder / name).read_text("utf-8").split("\n") for name in ("words.txt", "items.txt"))
        fitted = {name: sparse.load_npz(folder / f"{name}.npz") for name in MATRICES}
        fitted |= {name: np.load(folder / f"{name}.npy", "r", allow_pickle=False) for name in ARRAYS}
        fitted["vectorizer"] = vectorizer(1, words)
        fitted["vectorizer"].idf_ = fitted["idf"]
        choice = Choice(**notes["choice"])
        fusion = Fusion(**notes["fusion"]) if "fusion" in notes else None
        row_by_line: dict[str, int] = {}
        for line, row in zip(map(normalise, catalog.lines), matcher.index.items, strict=True):
            row_by_line.setdefault(line, row)
        now_M = np.array([row_by_line.get(line, -1) for line in before])
        there = np.flatnonzero(now_M >= 0)
        moved = sparse.csr_matrix((np.ones(len(there), np.float32), (there, now_M[there])), (len(before), len(catalog)))
        fitted |= {"wanted_RM": fitted["wanted_RM"] @ moved, "items_K": now_M[fitted["items_K"]]}
    except (OSError, EOFError, BadZipFile, ValueError, LookupError, TypeError) as error:
        raise UserError(f"--retrieval {folder}: damaged ({error}); fit it again") from None
    gone = len(before) - len(there)
    new = len({*row_by_line.values()} - {*now_M.tolist()})
    if not len(there):
        raise UserError(f"--retrieval {folder}: the catalog {file} has none of its items; give the one that it is of")
    told = f"{folder}: {new} items of {file} are new since it was fitted (it knows their words alone), {gone} are gone"
    return Retriever(fitted, item_texts(file, matcher), choice, fusion), [told] if new or gone else []
