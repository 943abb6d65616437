"""Run stages that write parquet to one folder, each only if its settings or inputs changed.

OUT/NAME.json records how the stage's files were made: {"settings", "inputs", "files", "summary"}. "files" has the
SHA-256 of each file, "inputs" those of the stages that were read, so that a change upstream is noticed; hashes are
recomputed whenever the files are used. While a stage runs, its record is {"unfinished": true}: an interrupted stage is
run again, and files without a record belong to somebody else.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import file_hash, read_json, write_json
from convrec.base.progress import Progress
from convrec.base.same_request import differences, json_roundtrip

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Summary = dict[str, Any]  # the results of a stage in NAME.json
SettingsT = TypeVar("SettingsT", bound="DataclassInstance")
KEYS = {"settings", "inputs", "files", "summary"}


@dataclass(frozen=True)
class Stage(Generic[SettingsT]):
    """A stage whose result depends on its settings and on the stages that it reads.

    Attributes:
        name: name of the stage and of its record.
        reads: names of the stages that it reads.
        files: names of the files that it writes.
        run: writes `files` to the folder and returns a summary (JSON).
    """

    name: str
    reads: Sequence[str]
    files: Sequence[str]
    run: Callable[[Path, SettingsT], Summary]


def record_settings(settings: "DataclassInstance") -> dict[str, Any]:
    """Return a stage's settings as its record has them, without those that are None."""
    return json_roundtrip({name: value for name, value in asdict(settings).items() if value is not None})


def run_stage(stage: Stage[SettingsT], folder: Path, settings: SettingsT, redo: bool) -> tuple[Summary, bool]:
    """Run a stage, unless it was run with these settings and nothing has changed since.

    Args:
        stage: the stage.
        folder: of the stages.
        settings: what the result depends on.
        redo: whether to run it again if something changed or questions failed.

    Returns:
        Its summary, and whether it was run now.

    Raises:
        UserError: A stage that it reads has not been run, or a file of a stage has changed; and, unless `redo` is
            given, the stage was run with other settings or inputs, or another program wrote its files.
    """
    recorded_settings = record_settings(settings)
    inputs = {name: _verify_files(folder, name, stage.name) for name in stage.reads}
    record = read_record(folder, stage.name)
    if record is None and not redo:
        refuse_foreign(folder, stage.name, stage.files)
    if record is not None:
        changes = [
            f"the stage `{name}` has changed since" for name in inputs if inputs[name] != record["inputs"].get(name)
        ]
        changes += differences(record["settings"], recorded_settings)
        if changes and not redo:
            raise UserError(
                "demonstrations.changed-settings",
                f"{folder}: the stage `{stage.name}` was run with other settings or inputs: {'; '.join(changes)}. Give "
                "--redo to run it again, or another --out.",
            )
        asks_again = redo and record["summary"].get("failed")  # questions without an answer
        if not (changes or asks_again) and all((folder / name).exists() for name in stage.files):
            if _hash_files(folder, stage.files) == record["files"]:
                return record["summary"], False
            if not redo:
                raise _make_changed_file_error(folder, stage.name, record)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stage.name}.json"
    write_json(path, {"unfinished": True})
    summary = stage.run(folder, settings)
    files = _hash_files(folder, stage.files)
    write_json(path, {"settings": recorded_settings, "inputs": inputs, "files": files, "summary": summary})
    return summary, True


def _verify_files(folder: Path, name: str, reader: str) -> dict[str, str]:
    """Return file -> hash for the stage `name`. Raises UserError if it did not write these files.

    reader: the stage that reads them, for messages.
    """
    record = read_record(folder, name)
    if record is None:
        raise UserError(
            "demonstrations.stage-not-run",
            f"{folder}: the stage `{name}` has not been run, but `{reader}` needs it; run it first",
        )
    for file in record["files"]:
        if not (folder / file).exists():
            raise UserError(
                "demonstrations.missing-stage-file",
                f"{folder / file}: missing, but `{reader}` needs it; run the stage `{name}` again",
            )
    if _hash_files(folder, record["files"]) != record["files"]:
        raise _make_changed_file_error(folder, name, record)
    return record["files"]


def read_record(folder: Path, name: str) -> dict[str, Any] | None:
    """Read the record of a stage, NAME.json.

    Args:
        folder: of the stages.
        name: of the stage.

    Returns:
        The content; None if the stage was not run, or not finished.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / f"{name}.json"
    try:
        record = read_json(path)
    except FileNotFoundError:
        return None
    except UserError:
        record = None
    if record == {"unfinished": True}:
        return None
    if not isinstance(record, dict) or not record.keys() >= KEYS:
        raise UserError(
            "demonstrations.damaged-record",
            f"{path}: not the record of a stage; remove it and give --redo to run `{name}` again",
        )
    return record


def refuse_foreign(folder: Path, name: str, files: Sequence[str]) -> None:
    """Check that a stage would replace no file that it did not write.

    Args:
        folder: of the stages.
        name: of the stage.
        files: that it writes.

    Raises:
        UserError: one of them exists without a record of the stage.
    """
    present = [file for file in files if (folder / file).exists()]
    if present and not (folder / f"{name}.json").exists():
        raise UserError(
            "demonstrations.foreign-file",
            f"{folder / present[0]}: there is no {name}.json, so the stage `{name}` did not write it; give another "
            "--out, or --redo to replace it",
        )


def _hash_files(folder: Path, files: Iterable[str]) -> dict[str, str]:
    return {file: file_hash(folder / file) for file in files}


def _make_changed_file_error(folder: Path, name: str, record: Mapping[str, Any]) -> UserError:
    files = " or ".join(record["files"])
    return UserError(
        "demonstrations.changed-stage-file",
        f"{folder}: {files} has changed since the stage `{name}` wrote it; restore it, or run `{name}` with --redo",
    )


def read_blocks(path: Path, size: int, columns: Sequence[str] | None = None) -> Iterator[list[dict]]:
    """Yield the rows of a parquet file in lists.

    Args:
        path: the file.
        size: the most rows of a list.
        columns: to read; None means all.
    """
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=size, columns=columns):
            yield batch.to_pylist()


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict]:
    """Yield the rows of a parquet file one by one, with a bounded number in memory.

    Args:
        path: the file.
        columns: to read; None means all.
    """
    return chain.from_iterable(read_blocks(path, 4096, columns))


def iter_with_progress(blocks: Iterable[Any], total: int, desc: str) -> Iterator[Any]:
    """Yield the blocks while showing a progress bar over their rows.

    Args:
        blocks: anything with a length, the number of its rows.
        total: number of all rows.
        desc: description of the bar.
    """
    with Progress(total=total, desc=desc, unit="row") as bar:
        for block in blocks:
            yield block
            bar.update(len(block))


def read_range(path: Path, start: int, stop: int, columns: Sequence[str]) -> pa.Table:
    """Read rows of a parquet file, using only the row groups that contain them.

    Args:
        path: the file.
        start: the first row, below the number of rows.
        stop: the row after the last.
        columns: to read.
    """
    with pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        ends = list(accumulate(sizes))
        first = bisect_right(ends, start)
        last = bisect_left(ends, stop)
        table = file.read_row_groups(list(range(first, last + 1)), columns)
        return table.slice(start - (ends[first] - sizes[first]), stop - start)


def count_rows(path: Path) -> int:
    """Return the number of rows of a parquet file."""
    return pq.read_metadata(path).num_rows
