"""Vectors of items and conversations, of embeddings that have not read the conversation they are asked about.

A later row of a conversation names what was recommended in an earlier one. An embedding that has read it ranks that
item higher for the earlier row than it ever could for a new conversation, and adjust would rely on it. So an embedding
that is fitted is fitted 1 + FOLDS times: space 0 has read all training conversations and is for validation rows; space
1 + k has not read part k of them and is for that part. A model from elsewhere has space 0 alone.
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

from convrec.base.files import read_json, write_json, written_whole
from convrec.base.progress import Progress
from convrec.data.schema import conversation_text
from convrec.titles.item import format_item
from data_prep.stages.embeddings import TFIDF_SVD, Embedder, make_embedder
from data_prep.stages.metadata import FILE as METADATA
from data_prep.stages.ranges import RangeMap, make_ranges
from data_prep.stages.record import by_rows, count_rows, read_blocks, read_range, read_rows
from data_prep.stages.rows import ROWS, catalog_matcher

FIT_TEXTS = 20_000  # training conversations that tfidf-svd is fitted on, at most
FOLDS = 4
TEXTS = "texts.json"
CONVERSATIONS = "conversations.npy"


def choose_space(row: dict, num_spaces: int) -> int:
    """row: with split and group, so that the rows of a conversation are in one space."""
    if num_spaces == 1 or row["split"] != "train":
        return 0
    return 1 + zlib.crc32(row["group"].encode()) % FOLDS


@dataclass(frozen=True)
class EmbeddingSettings:
    """What the vectors depend on.

    Attributes:
        embedding: TFIDF_SVD, or a model's name, as `make_embedder` takes it.
        dimensions: of the vectors of TFIDF_SVD.
        seed: of its decomposition.
        trust_remote_code: whether a model may run the code that it comes with.
    """

    embedding: str
    dimensions: int
    seed: int
    trust_remote_code: bool


def make_spaces(folder: Path, scratch: Path, settings: EmbeddingSettings, map_ranges: RangeMap) -> int:
    """Leave in `scratch` the embedder and the items' vectors of each space, and each conversation's vector in its own.

    Returns:
        How many spaces there are.
    """
    if settings.embedding != TFIDF_SVD:  # reads nothing, and uses all cores or a GPU by itself
        _encode_here(folder, scratch, settings)
        return 1
    write_json(scratch / TEXTS, training_texts(folder))
    fits = [(space, space + 1) for space in range(1 + FOLDS)]
    for _ in Progress(map_ranges(partial(fit_space, folder, scratch, settings), fits), total=len(fits), desc="fit"):
        pass
    _widen(scratch, len(fits))
    total = count_rows(folder / ROWS)
    _write_conversations(scratch, total, map_ranges(partial(encode_range, folder, scratch), make_ranges(total)))
    return len(fits)


def fit_space(folder: Path, scratch: Path, settings: EmbeddingSettings, space: int, _: int) -> None:
    """The embedder of one space, and the items' vectors: the catalog's first, then those the teacher named besides."""
    metadata = pq.read_table(folder / METADATA, columns=["text"])["text"].to_pylist()
    catalog = catalog_matcher(folder).catalog
    names = [format_item(t, year) for t, year in zip(catalog.titles, catalog.years, strict=True) if year is not None]
    read = [text for unread, text in read_json(scratch / TEXTS) if unread != space]  # space 0: all of them
    embedder = make_embedder(TFIDF_SVD, metadata + read, names, settings.dimensions, settings.seed)
    joblib.dump(embedder, scratch / f"embedder{space}")
    np.save(scratch / f"items{space}.npy", embedder.encode(metadata))


def _widen(scratch: Path, num_spaces: int) -> None:
    """A space of few texts has fewer dimensions than another: add zeros, which change no product."""
    widths = [load_item_vectors(scratch, space).shape[1] for space in range(num_spaces)]
    for space, width in enumerate(widths):
        if width < max(widths):
            np.save(
                scratch / f"items{space}.npy",
                np.pad(load_item_vectors(scratch, space), ((0, 0), (0, max(widths) - width))),
            )


def encode_range(folder: Path, scratch: Path, start: int, stop: int) -> np.ndarray:
    """(stop - start, D)."""
    rows = read_range(folder / ROWS, start, stop, ["prompt", "split", "group"]).to_pylist()
    spaces_B = np.array([choose_space(row, 1 + FOLDS) for row in rows])
    vectors_BD = np.zeros((len(rows), load_item_vectors(scratch, 0).shape[1]), np.float32)
    for space in np.unique(spaces_B):
        chosen = np.flatnonzero(spaces_B == space)
        path = scratch / f"embedder{space}"
        embedder = _embedder(path, path.stat().st_mtime_ns)
        found = embedder.encode([conversation_text(rows[b]) for b in chosen])
        vectors_BD[chosen, : found.shape[1]] = found
    return vectors_BD


@lru_cache(maxsize=1 + FOLDS)
def _embedder(path: Path, _: int) -> Embedder:
    """Read once in a process; its arrays are in memory once for all processes. A pickle, of this very command."""
    return joblib.load(path, mmap_mode="r")


def load_item_vectors(scratch: Path, space: int) -> np.ndarray:
    """(I, D) unit vectors, the catalog's M items first; read as they are needed."""
    return np.load(scratch / f"items{space}.npy", mmap_mode="r")


def load_conversation_vectors(scratch: Path, start: int, stop: int) -> np.ndarray:
    """(stop - start, D) unit vectors."""
    return np.load(scratch / CONVERSATIONS, mmap_mode="r")[start:stop]


def _encode_here(folder: Path, scratch: Path, settings: EmbeddingSettings) -> None:
    metadata = pq.read_table(folder / METADATA, columns=["text"])["text"].to_pylist()
    embedder = make_embedder(settings.embedding, [], trust_remote_code=settings.trust_remote_code)
    np.save(scratch / "items0.npy", embedder.encode(metadata))
    blocks = read_blocks(folder / ROWS, 512, ["prompt"])
    encoded = (embedder.encode([conversation_text(row) for row in block]) for block in blocks)
    _write_conversations(scratch, count_rows(folder / ROWS), encoded)


def _write_conversations(scratch: Path, total: int, blocks: Iterator[np.ndarray]) -> None:
    shape = total, load_item_vectors(scratch, 0).shape[1]
    write_array(scratch / CONVERSATIONS, shape, by_rows(blocks, total, "encode"))


def write_array(path: Path, shape: tuple[int, ...], blocks: Iterable[np.ndarray]) -> None:
    """One float32 array, of blocks that are written as they come."""
    with written_whole(path) as partial_path, partial_path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for block in blocks:
            file.write(np.ascontiguousarray(block, np.float32).data)


def training_texts(folder: Path) -> list[tuple[int, str]]:
    """(space, conversation) of the training split, evenly thinned to FIT_TEXTS."""
    step = max(1, -(-count_rows(folder / ROWS) // FIT_TEXTS))
    train = (row for row in read_rows(folder / ROWS, ["prompt", "split", "group"]) if row["split"] == "train")
    return [(choose_space(row, 1 + FOLDS), conversation_text(row)) for row in islice(train, 0, None, step)]
