"""The released tree as its users download it: a Hugging Face `save_to_disk` folder, read in record batches.

    SOURCE/sft_dataset/{train,validation,test}
    SOURCE/grpo/grpo_dataset/train                 or SOURCE/grpo_dataset/train
    SOURCE/gt_catalog.pkl

Each split is a folder with state.json, which names the shards: Arrow streams. Only one batch is in memory.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from tqdm import tqdm

from convrec.data.schema import MESSAGES, TRUTH
from convrec.errors import UserError

BATCH_ROWS = 1000
MEBIBYTE = 1 << 20
_TITLED = pa.struct([("title", pa.string())])
# What a column may hold, and what the message says; null where a split has no value at all.
COLUMNS = {
    "prompt": ([MESSAGES], "{content, role} messages"),
    "completion": ([MESSAGES], "{content, role} messages"),
    "seen_titles": ([pa.list_(pa.string())], "titles"),
    TRUTH: ([pa.list_(pa.list_(pa.string())), pa.list_(_TITLED)], "[title, year] pairs"),
}
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
AGAIN = "the download looks incomplete: fetch this folder again"


class Split(NamedTuple):
    """One split on disk; `identity` changes when its content does, as far as its fingerprint or the ends of its shards
    tell."""

    name: str  # relative to the source, as messages name it
    shards: list[Path]
    identity: str


def find_split(source: Path, *candidates: str) -> Split | None:
    """The first of the folders that is there; None when none is. Raises UserError when its shards are not."""
    for candidate in candidates:
        folder = source / candidate
        if folder.is_dir():
            return _read_state(candidate, folder)
    return None


def _read_state(name: str, folder: Path) -> Split:
    state_file = folder / "state.json"
    if not state_file.is_file():
        raise UserError(f"{folder}: no state.json, so this is no folder of datasets' save_to_disk; {AGAIN}")
    try:
        state = json.loads(state_file.read_text(encoding="utf-8"))
        shards = [folder / entry["filename"] for entry in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{state_file}: not the state of a dataset ({error!r}); {AGAIN}") from error
    if chosen := [key for key, value in state.items() if "indices" in key and value]:
        raise UserError(
            f"{folder}: a selection of rows (state.json has {chosen[0]}), which is not read; save the data set again "
            "after `flatten_indices()`"
        )
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise UserError(f"{folder}: {', '.join(missing)} not there, which state.json names; {AGAIN}")
    for shard in shards:
        with shard.open("rb") as file:
            file.seek(max(0, shard.stat().st_size - len(END_OF_STREAM)))
            if file.read() != END_OF_STREAM:  # cut off after a batch, it would read as a shorter split
                raise UserError(f"{shard}: this Arrow stream has no end; {AGAIN}")
    sizes = [[shard.name, shard.stat().st_size] for shard in shards]
    content = state.get("_fingerprint") or [_ends_hash(shard) for shard in shards]
    return Split(name, shards, json.dumps([name, content, sizes]))


def _ends_hash(shard: Path) -> str:
    """Of the first and the last MiB: shards are gigabytes."""
    with shard.open("rb") as file:
        first = file.read(MEBIBYTE)
        file.seek(max(0, shard.stat().st_size - MEBIBYTE))
        return hashlib.sha256(first + file.read()).hexdigest()


def read_split(split: Split, columns: tuple[str, ...], progress: str | None = None) -> Iterator[list[dict]]:
    """Batches of rows with these columns. `progress` is the label of a bar over bytes; None: no bar.

    Raises UserError naming the shard for a column that is missing or of another type, and for a damaged shard.
    """
    size = sum(shard.stat().st_size for shard in split.shards)
    with tqdm(total=size, desc=progress, unit="B", unit_scale=True, disable=None if progress else True) as bar:
        for shard in split.shards:
            # not memory-mapped: the pages of a map count as ours until the kernel wants them back
            with pa.OSFile(str(shard)) as file:
                try:
                    yield from _read_shard(file, shard, columns, bar)
                except (pa.ArrowInvalid, OSError) as error:
                    raise UserError(f"{shard}: not readable as an Arrow stream ({error}); {AGAIN}") from error


def _read_shard(file: pa.OSFile, shard: Path, columns: tuple[str, ...], bar: tqdm) -> Iterator[list[dict]]:
    before = 0
    with pa.ipc.open_stream(file) as reader:
        missing = [name for name in columns if name not in reader.schema.names]
        if missing:
            raise UserError(
                f"{shard}: no column {', '.join(missing)}; it has {', '.join(reader.schema.names)}. "
                "Is this the Reddit-v2 release, and the right folder of it?"
            )
        for name in columns:
            kind, (wanted, said) = reader.schema.field(name).type, COLUMNS[name]
            if not any(_is_like(kind, one) for one in wanted):
                raise UserError(
                    f"{shard}: column {name} is {kind}, not a list of {said}; is this the Reddit-v2 release?"
                )
        for batch in reader:
            wanted = batch.select(list(columns))
            for start in range(0, len(wanted), BATCH_ROWS):
                yield wanted.slice(start, BATCH_ROWS).to_pylist()
            bar.update(file.tell() - before)
            before = file.tell()
    bar.update(shard.stat().st_size - before)


def _is_like(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values can be read as `wanted`: large or not, with further struct fields, null where there are none."""
    if pa.types.is_null(kind):
        return True
    if pa.types.is_struct(wanted):
        return pa.types.is_struct(kind) and all(
            kind.get_field_index(field.name) >= 0 and _is_like(kind.field(field.name).type, field.type)
            for field in wanted
        )
    if pa.types.is_list(wanted):
        return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_like(kind.value_type, wanted.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
