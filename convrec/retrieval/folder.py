"""A fitted retrieval as a folder: JSON, text, and arrays that are mapped into memory. Nothing is pickled.

retrieval.json  the data it was fitted on, and the choices on validation: parts, and the weight with a model
NAME.txt        one per line: the words of the conversations, the catalog's items
NAME.npy, .npz  arrays, and sparse matrices in scipy's format
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from scipy import sparse

from convrec.base.errors import UserError
from convrec.base.files import read_json, write_json, write_text
from convrec.retrieval.conversations import build_item_texts
from convrec.retrieval.parts import make_vectorizer
from convrec.retrieval.retriever import Choice, Fusion, Retriever
from convrec.titles.catalog import Catalog
from convrec.titles.forms import normalise
from convrec.titles.matching import Matcher

NOTES = "retrieval.json"
FUSION_NOTES = ("fusion", "fusion_of")  # chosen after the fit
FORMAT = 2
ARRAYS = ("idf", "conversation_R", "text_R", "prefix_P", "prefix_row_P", "items_K", "inverse_KK", "weights_KK")
MATRICES = ("rows_RV", "wanted_RM", "named_RK")


def save(folder: Path, fitted: Mapping[str, Any], catalog: Catalog, notes: Mapping[str, Any]) -> None:
    """Write a fitted retrieval.

    Args:
        folder: an existing folder.
        fitted: from `retriever.fit`.
        catalog: the catalog that it was fitted on.
        notes: JSON values, with the fields of a Choice as `choice`.
    """
    words = fitted["vectorizer"]
    write_text(folder / "words.txt", "\n".join(words.get_feature_names_out()))
    write_text(folder / "items.txt", "\n".join(map(normalise, catalog.lines)))
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", words.idf_ if name == "idf" else fitted[name], allow_pickle=False)
    for name in MATRICES:
        sparse.save_npz(folder / f"{name}.npz", fitted[name], compressed=False)
    write_json(folder / NOTES, {"format": FORMAT, "rows": len(fitted["conversation_R"]), **notes})


def load_notes(folder: Path, fuses: bool = False) -> dict[str, Any]:
    """Read retrieval.json.

    Args:
        folder: the retrieval's folder.
        fuses: whether its lists will be fused with a model's.

    Raises:
        UserError: there is no retrieval of this version, or no weight for the fusion.
    """
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


def save_fusion(folder: Path, before: Mapping[str, Any], fusion: Fusion, source: Mapping[str, Any]) -> None:
    """Write a chosen fusion into retrieval.json.

    Args:
        folder: the retrieval's folder.
        before: the notes of the retriever whose lists were fused.
        fusion: the choice.
        source: the model and data that it was chosen with, as JSON values.

    Raises:
        UserError: the folder holds another fit now.
    """
    notes = load_notes(folder)
    if _describe_fit(notes) != _describe_fit(before):
        raise UserError(
            "retrieval.changed",
            f"--retrieval {folder}: it was fitted again while the weight of its lists was chosen. Repeat the command.",
        )
    write_json(folder / NOTES, notes | {"fusion": fusion._asdict(), "fusion_of": source})


def _describe_fit(notes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in notes.items() if name not in FUSION_NOTES}


def load(folder: Path, file: str | Path, matcher: Matcher, fuses: bool = False) -> tuple[Retriever, list[str]]:
    """Load a retriever for a catalog, which may have changed since the fit.

    Args:
        folder: the retrieval's folder.
        file: the catalog's file.
        matcher: holds the catalog.
        fuses: whether its lists will be fused with a model's.

    Returns:
        The retriever, and a warning if the catalog has changed.

    Raises:
        UserError: the folder is damaged, was fitted on another data set, or is refused by `load_notes`.
    """
    notes = load_notes(folder, fuses)
    catalog = matcher.catalog
    try:
        words, before = ((folder / name).read_text("utf-8").split("\n") for name in ("words.txt", "items.txt"))
        fitted = {name: sparse.load_npz(folder / f"{name}.npz") for name in MATRICES}
        fitted |= {name: np.load(folder / f"{name}.npy", "r", allow_pickle=False) for name in ARRAYS}
        fitted["vectorizer"] = make_vectorizer(1, words)
        fitted["vectorizer"].idf_ = fitted["idf"]
        choice = Choice(**notes["choice"])
        fusion = Fusion(**notes["fusion"]) if "fusion" in notes else None
        row_by_line: dict[str, int] = {}
        for line, row in zip(map(normalise, catalog.lines), matcher.index.items, strict=True):
            row_by_line.setdefault(line, row)
        row_now_M = np.array([row_by_line.get(line, -1) for line in before])
        remaining = np.flatnonzero(row_now_M >= 0)
        ones = np.ones(len(remaining), np.float32)
        moves = sparse.csr_matrix((ones, (remaining, row_now_M[remaining])), (len(before), len(catalog)))
        fitted |= {"wanted_RM": fitted["wanted_RM"] @ moves, "items_K": row_now_M[fitted["items_K"]]}
    except (OSError, EOFError, BadZipFile, ValueError, LookupError, TypeError) as error:
        raise UserError("retrieval.damaged-folder", f"--retrieval {folder}: damaged ({error}). Fit it again.") from None
    num_removed = len(before) - len(remaining)
    num_new = len({*row_by_line.values()} - {*row_now_M.tolist()})
    if not len(remaining):
        raise UserError(
            "retrieval.other-catalog",
            f"--retrieval {folder}: the catalog {file} has none of its items. Use the catalog that it was fitted on.",
        )
    warnings = []
    if num_new or num_removed:
        warnings.append(
            f"{folder}: since the fit, {file} has {num_new} new items, of which only the words are known, and lost "
            f"{num_removed}"
        )
    return Retriever(fitted, build_item_texts(file, matcher), choice, fusion, notes), warnings
