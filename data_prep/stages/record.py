"""Stages that leave parquet in one folder: each is run when its settings or what it reads changed, and not otherwise.

OUT/NAME.json says how the stage's files came about: {"settings", "inputs", "files", "summary"}. "files" has the SHA-256
of each, and "inputs" those of the stages it read, so that a change upstream shows; they are computed again whenever the
files are relied on. While a stage runs its record is {"unfinished": true}: one that was interrupted is run again, and
files without a record are somebody else's.
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
from convrec.base.same_request import as_kept, differences

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Summary = dict[str, Any]  # what NAME.json holds of a stage's outcome
SettingsT = TypeVar("SettingsT", bound="DataclassInstance")
KEYS = {"settings", "inputs", "files", "summary"}


@dataclass(frozen=True)
class Stage(Generic[SettingsT]):
    """A stage whose result depends on its settings and on the stages that it reads.

    Attributes:
        name: of the stage, and of its record.
        reads: the stages before it.
        files: what it writes.
        run: writes `files` into the folder and returns a summary (JSON) to show and keep.
    """

    name: str
    reads: Sequence[str]
    files: Sequence[str]
    run: Callable[[Path, SettingsT], Summary]


def record_settings(settings: "DataclassInstance") -> dict[str, Any]:
    """Return a stage's settings as its record keeps them, without those that are None."""
    return as_kept({name: value for name, value in asdict(settings).items() if value is not None})


def run_stage(stage: Stage[SettingsT], folder: Path, settings: SettingsT, redo: bool) -> tuple[Summary, bool]:
    """Run a stage, unless it was run with these settings and nothing has changed since.

    Returns:
        Its summary, and whether it was run now.

    Raises:
        UserError: A stage before it is missing; a file of it or of those before it is not what was written; and, unless
            `redo` is given, it was run with other settings or inputs, or its files are another program's.
    """
    kept_settings = record_settings(settings)
    inputs = {name: _verify_files(folder, name, stage.name) for name in stage.reads}
    record = read_record(folder, stage.name)
    if record is None and not redo:
        refuse_foreign(folder, stage.name, stage.files)
    if record is not None:
        others = [
            f"the stage `{name}` has changed since" for name in inputs if inputs[name] != record["inputs"].get(name)
        ]
        others += differences(record["settings"], kept_settings)
        if others and not redo:
            raise UserError(
                f"{folder}: the stage `{stage.name}` was run with something else: {'; '.join(others)}. Give --redo to "
                "run it again, or another --out"
            )
        asks_again = redo and record["summary"].get("failed")  # questions without an answer
        if not (others or asks_again) and all((folder / name).exists() for name in stage.files):
            if _hashes(folder, stage.files) == record["files"]:
                return record["summary"], False
            if not redo:
                raise _changed(folder, stage.name, record)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stage.name}.json"
    write_json(path, {"unfinished": True})
    summary = stage.run(folder, settings)
    files = _hashes(folder, stage.files)
    write_json(path, {"settings": kept_settings, "inputs": inputs, "files": files, "summary": summary})
    return summary, True


def _verify_files(folder: Path, name: str, reader: str) -> dict[str, str]:
    """File -> hash of the stage `name`. Raises UserError where they are not what it wrote; reader: who needs them."""
    record = read_record(folder, name)
    if record is None:
        raise UserError(f"{folder}: the stage `{name}` is not there yet; `{reader}` reads it: run it first")
    for file in record["files"]:
        if not (folder / file).exists():
            raise UserError(f"{folder / file}: gone, and `{reader}` reads it; run the stage `{name}` again")
    if _hashes(folder, record["files"]) != record["files"]:
        raise _changed(folder, name, record)
    return record["files"]


def read_record(folder: Path, name: str) -> dict[str, Any] | None:
    """What NAME.json holds; None where the stage was not run, or not to its end."""
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
        raise UserError(f"{path}: not the record of a stage; remove it and give --redo to run `{name}` again")
    return record


def refuse_foreign(folder: Path, name: str, files: Sequence[str]) -> None:
    """Raises UserError when the stage would replace a file and no record says that it is the stage's own."""
    if not (folder / f"{name}.json").exists() and (present := [file for file in files if (folder / file).exists()]):
        raise UserError(
            f"{folder / present[0]}: there is no {name}.json, so the stage `{name}` did not write it; give another "
            "--out, or --redo to replace it"
        )


def _hashes(folder: Path, files: Iterable[str]) -> dict[str, str]:
    return {file: file_hash(folder / file) for file in files}


def _changed(folder: Path, name: str, record: Mapping[str, Any]) -> UserError:
    files = " or ".join(record["files"])
    return UserError(
        f"{folder}: {files} is not what the stage `{name}` wrote; put the file back, or run `{name}` with --redo"
    )


def read_blocks(path: Path, size: int, columns: Sequence[str] | None = None) -> Iterator[list[dict]]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=size, columns=columns):
            yield batch.to_pylist()


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict]:
    return chain.from_iterable(read_blocks(path, 4096, columns))


def by_rows(blocks: Iterable[Any], total: int, desc: str) -> Iterator[Any]:
    """The blocks, which have a length each, with a bar over their rows."""
    with Progress(total=total, desc=desc, unit="row") as bar:
        for block in blocks:
            yield block
            bar.update(len(block))


def read_range(path: Path, start: int, stop: int, columns: Sequence[str]) -> pa.Table:
    """Rows start to stop; reads the row groups that have some of them."""
    with pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        ends = list(accumulate(sizes))
        first = bisect_right(ends, start)
        last = bisect_left(ends, stop)
        table = file.read_row_groups(list(range(first, last + 1)), columns)
        return table.slice(start - (ends[first] - sizes[first]), stop - start)


def count_rows(path: Path) -> int:
    return pq.read_metadata(path).num_rows
