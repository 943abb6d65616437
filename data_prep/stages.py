"""Stages that leave parquet in one folder: each is run when its settings or what it reads changed, and not otherwise.

OUT/NAME.json says how the stage's files came about: {"id", "settings", "inputs", "files", "summary"}. An id is the
SHA-256 of the stage's files and `inputs` holds the ids of the stages it read, so that a change upstream shows. The
record is written last: a stage that was interrupted has none and is run again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.errors import UserError

Summary = dict[str, Any]


class Stage(NamedTuple):
    """run(folder, settings) writes `files` into the folder and returns a summary (JSON) to show and keep."""

    name: str
    reads: Sequence[str]  # stages before it
    files: Sequence[str]
    run: Callable[[Path, dict[str, Any]], Summary]


def run_stage(stage: Stage, folder: Path, settings: dict[str, Any], redo: bool) -> tuple[Summary, bool]:
    """(summary, whether it was run now).

    Raises UserError when a stage before it is missing, and when its files are there from other settings or inputs and
    `redo` is not given: the message names what changed.
    """
    settings = json.loads(json.dumps(settings))  # as the record will hold them
    inputs = {}
    for name in stage.reads:
        record = read_record(folder, name)
        if record is None:
            raise UserError(f"{folder}: the stage `{name}` is not there yet; `{stage.name}` reads it: run it first")
        inputs[name] = record["id"]
    record = read_record(folder, stage.name)
    if record is not None and all((folder / file).exists() for file in stage.files):
        if (record["settings"], record["inputs"]) == (settings, inputs):
            return record["summary"], False
        if not redo:
            raise UserError(
                f"{folder}: the stage `{stage.name}` was run with something else: "
                f"{_difference(record, settings, inputs)}. Give --redo to run it again, or another --out"
            )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stage.name}.json").unlink(missing_ok=True)
    summary = stage.run(folder, settings)
    identity = " ".join(file_id(folder / file) for file in stage.files)
    identity = hashlib.sha256(identity.encode()).hexdigest()
    record = {"id": identity, "settings": settings, "inputs": inputs, "files": list(stage.files), "summary": summary}
    with written_whole(folder / f"{stage.name}.json") as partial:
        partial.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return summary, True


def read_record(folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / f"{name}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise UserError(f"{path}: not JSON; remove it to run the stage `{name}` again") from None


def _difference(record: Mapping[str, Any], settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    changes = [f"the stage `{name}` has changed since" for name in inputs if inputs[name] != record["inputs"].get(name)]
    for name in sorted({*settings, *record["settings"]}):
        old, new = record["settings"].get(name), settings.get(name)
        if old != new:
            changes.append(f"{name} was {old!r} and is {new!r}")
    return "; ".join(changes)


def file_id(path: str | os.PathLike) -> str:
    """SHA-256 of a file's content: an input that was changed in place shows."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name beside `path` to write under; renamed when the block ends well, removed when it does not."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def parquet_writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Batches written as they come; the file appears when the block ends well."""
    with written_whole(path) as partial, pq.ParquetWriter(partial, schema) as writer:
        yield writer


def read_blocks(path: Path, size: int, columns: Sequence[str] | None = None) -> Iterator[list[dict]]:
    """Rows of a parquet file as dicts, `size` at a time (the last block is shorter)."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=size, columns=columns):
            yield batch.to_pylist()


def count_rows(path: Path) -> int:
    return pq.read_metadata(path).num_rows
