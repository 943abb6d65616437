"""Vectors of items and conversations, from embeddings that were not fitted on the conversation they encode.

A later row of a conversation names what was recommended in an earlier one. An embedding fitted on it would rank that
item higher for the earlier row than it could for a new conversation, and adjust would rely on that. An embedding that
is fitted is therefore fitted 1 + FOLDS times (cross-fitting): space 0 on all training conversations, for validation
rows; space 1 + k on all but fold k, for the rows of that fold. A pretrained model has space 0 only.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

import joblib
import numpy as np
import pyarrow.parquet as pq

from convrec.base.files import atomic_write, read_json, write_json
from convrec.base.progress import Progress
from convrec.data.schema import conversation_text
from convrec.titles.item import format_item
from data_prep.stages.embeddings import TFIDF_SVD, Embedder, make_embedder
from data_prep.stages.metadata import FILE as METADATA
from data_prep.stages.ranges import RangeMap, make_ranges
from data_prep.stages.record import count_rows, iter_with_progress, read_blocks, read_range, read_rows
from data_prep.stages.rows import ROWS, load_matcher

FIT_TEXTS = 20_000  # maximum number of training conversations that tfidf-svd is fitted on
FOLDS = 4
TEXTS = "texts.json"
CONVERSATIONS = "conversations.npy"


def choose_space(row: dict, num_spaces: int) -> int:
    """Choose the space of a row by its split and group: all rows of a conversation are in one space.

    Args:
        row: with `split` and `group`.
        num_spaces: 1 for a pretrained embedding, else 1 + FOLDS.

    Returns:
        0 for all rows except those of train with a fitted embedding; these get 1 + their fold.
    """
    if num_spaces == 1 or row["split"] != "train":
        return 0
    return 1 + zlib.crc32(row["group"].encode()) % FOLDS


@dataclass(frozen=True)
class EmbeddingSettings:
    """Settings that the vectors depend on.

    Attributes:
        embedding: a name that `make_embedder` accepts.
        dimensions: dimensions of TFIDF_SVD.
        seed: random seed of its decomposition.
        trust_remote_code: whether code that comes with a model may run.
    """

    embedding: str
    dimensions: int
    seed: int
    trust_remote_code: bool


def make_spaces(folder: Path, scratch: Path, settings: EmbeddingSettings, map_ranges: RangeMap) -> int:
    """Write the embedder and item vectors of each space to `scratch`, and each conversation's vector in its space.

    Returns:
        The number of spaces.
    """
    if settings.embedding != TFIDF_SVD:  # needs no fit, and uses all cores or a GPU by itself
        _encode_in_process(folder, scratch, settings)
        return 1
    write_json(scratch / TEXTS, read_training_texts(folder))
    fits = [(space, space + 1) for space in range(1 + FOLDS)]
    for _ in Progress(map_ranges(partial(fit_space, folder, scratch, settings), fits), total=len(fits), desc="fit"):
        pass
    _pad_vectors(scratch, len(fits))
    total = count_rows(folder / ROWS)
    _write_conversations(scratch, total, map_ranges(partial(encode_range, folder, scratch), make_ranges(total)))
    return len(fits)


def fit_space(folder: Path, scratch: Path, settings: EmbeddingSettings, space: int, _: int) -> None:
    """Fit the embedder of one space and encode the items: those of the catalog, then others that the teacher named.

    Args:
        folder: of the stages.
        scratch: has TEXTS, and gets the embedder and the vectors.
        settings: of the embedding.
        space: its number; 0 fits on all texts.
        _: the end of the range that the process pool passes.
    """
    metadata = pq.read_table(folder / METADATA, columns=["text"])["text"].to_pylist()
    catalog = load_matcher(folder).catalog
    names = [format_item(t, year) for t, year in zip(catalog.titles, catalog.years, strict=True) if year is not None]
    texts = [text for text_space, text in read_json(scratch / TEXTS) if text_space != space]  # space 0: all texts
    embedder = make_embedder(TFIDF_SVD, metadata + texts, names, settings.dimensions, settings.seed)
    joblib.dump(embedder, scratch / f"embedder{space}")
    np.save(scratch / f"items{space}.npy", embedder.encode(metadata))


def _pad_vectors(scratch: Path, num_spaces: int) -> None:
    """Pad the item vectors of spaces with fewer dimensions with zeros, which change no product."""
    widths = [load_item_vectors(scratch, space).shape[1] for space in range(num_spaces)]
    for space, width in enumerate(widths):
        if width < max(widths):
            np.save(
                scratch / f"items{space}.npy",
                np.pad(load_item_vectors(scratch, space), ((0, 0), (0, max(widths) - width))),
            )


def encode_range(folder: Path, scratch: Path, start: int, stop: int) -> np.ndarray:
    """Encode the conversations of a range, each with the embedder of its space.

    Args:
        folder: of the stages.
        scratch: with the files of `fit_space`.
        start: the first row of the range.
        stop: the row after its last.

    Returns:
        (stop - start, D) float32; a space with fewer dimensions is filled up with 0.
    """
    rows = read_range(folder / ROWS, start, stop, ["prompt", "split", "group"]).to_pylist()
    spaces_B = np.array([choose_space(row, 1 + FOLDS) for row in rows])
    vectors_BD = np.zeros((len(rows), load_item_vectors(scratch, 0).shape[1]), np.float32)
    for space in np.unique(spaces_B):
        chosen = np.flatnonzero(spaces_B == space)
        path = scratch / f"embedder{space}"
        embedder = _load_embedder(path, path.stat().st_mtime_ns)
        encoded = embedder.encode([conversation_text(rows[b]) for b in chosen])
        vectors_BD[chosen, : encoded.shape[1]] = encoded
    return vectors_BD


@lru_cache(maxsize=1 + FOLDS)
def _load_embedder(path: Path, _: int) -> Embedder:
    """Load an embedder once per process; processes share the memory of its arrays. This command wrote the pickle."""
    return joblib.load(path, mmap_mode="r")


def load_item_vectors(scratch: Path, space: int) -> np.ndarray:
    """Return the items' unit vectors, (I, D), memory-mapped; the catalog's M items come first."""
    return np.load(scratch / f"items{space}.npy", mmap_mode="r")


def load_conversation_vectors(scratch: Path, start: int, stop: int) -> np.ndarray:
    """Return the unit vectors of a range of conversations, (stop - start, D), memory-mapped."""
    return np.load(scratch / CONVERSATIONS, mmap_mode="r")[start:stop]


def _encode_in_process(folder: Path, scratch: Path, settings: EmbeddingSettings) -> None:
    metadata = pq.read_table(folder / METADATA, columns=["text"])["text"].to_pylist()
    embedder = make_embedder(settings.embedding, [], trust_remote_code=settings.trust_remote_code)
    np.save(scratch / "items0.npy", embedder.encode(metadata))
    blocks = read_blocks(folder / ROWS, 512, ["prompt"])
    encoded = (embedder.encode([conversation_text(row) for row in block]) for block in blocks)
    _write_conversations(scratch, count_rows(folder / ROWS), encoded)


def _write_conversations(scratch: Path, total: int, blocks: Iterator[np.ndarray]) -> None:
    shape = total, load_item_vectors(scratch, 0).shape[1]
    write_array(scratch / CONVERSATIONS, shape, iter_with_progress(blocks, total, "encode"))


def write_array(path: Path, shape: tuple[int, ...], blocks: Iterable[np.ndarray]) -> None:
    """Write one float32 array in blocks, as a .npy file, atomically.

    Args:
        path: the file, which is replaced.
        shape: of the whole array, which the blocks must fill exactly; this is not checked.
        blocks: in order, along the first axis.
    """
    with atomic_write(path) as partial_path, partial_path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for block in blocks:
            file.write(np.ascontiguousarray(block, np.float32).data)


def read_training_texts(folder: Path) -> list[tuple[int, str]]:
    """Return (space, conversation) for the training split, evenly thinned to at most FIT_TEXTS."""
    step = max(1, -(-count_rows(folder / ROWS) // FIT_TEXTS))
    train = (row for row in read_rows(folder / ROWS, ["prompt", "split", "group"]) if row["split"] == "train")
    return [(choose_space(row, 1 + FOLDS), conversation_text(row)) for row in islice(train, 0, None, step)]
