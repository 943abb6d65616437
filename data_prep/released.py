"""The released tree as its users download it: a Hugging Face `save_to_disk` folder, read in record batches, and its
rows cleaned.

    SOURCE/sft_dataset/{train,validation,test}
    SOURCE/grpo/grpo_dataset/train                 or SOURCE/grpo_dataset/train
    SOURCE/gt_catalog.pkl

Each split is a folder with state.json, which names the shards: Arrow streams in that folder. Only one batch is in
memory.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from convrec.base.errors import UserError
from convrec.base.progress import Progress
from convrec.data.records import rows_without_utf8
from convrec.data.schema import MESSAGES, RL_SCHEMA, SFT_SCHEMA, TRUTH, Pair, is_like
from convrec.titles.catalog import parse_year
from data_prep.tables import message

NO_PROMPT = "the prompt is not exactly one user message with text"
BATCH_ROWS = 1000
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


class Target(NamedTuple):
    """A file to write and where its rows come from: the first of the folders that is there."""

    name: str
    folders: tuple[str, ...]
    completion: bool = False  # SFT: rows need one
    truth: bool = False  # rows need ground truth

    @property
    def schema(self) -> pa.Schema:
        return SFT_SCHEMA if self.completion else RL_SCHEMA


class ReleasedSplit(NamedTuple):
    name: str  # relative to the source, as messages name it
    shards: list[Path]


def find_split(source: Path, candidates: Sequence[str]) -> ReleasedSplit | None:
    """The first of the folders that is there; None when none is. Raises UserError when its shards are not."""
    name = next((candidate for candidate in candidates if (source / candidate).is_dir()), None)
    if name is None:
        return None
    folder = source / name
    named_shards = _read_shards(folder)
    _check_shards_inside(folder, named_shards)
    shards = [shard for _, shard in named_shards]
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise UserError(f"{folder}: {', '.join(missing)} not there, which state.json names; {AGAIN}")
    for shard in shards:
        _check_stream_end(shard)
    return ReleasedSplit(name, shards)


def _read_shards(folder: Path) -> list[tuple[str, Path]]:
    """(name, file) of each shard in a folder's state.json. Raises UserError where it names none, or chosen rows."""
    state_file = folder / "state.json"
    if not state_file.is_file():
        raise UserError(f"{folder}: no state.json, so this is no folder of datasets' save_to_disk; {AGAIN}")
    try:
        state = json.loads(state_file.read_text(encoding="utf-8"))
        shards = [(entry["filename"], folder / entry["filename"]) for entry in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{state_file}: not the state of a dataset ({error!r}); {AGAIN}") from error
    if not shards:
        raise UserError(f"{state_file}: names no shard (_data_files is empty), so the split would have no row; {AGAIN}")
    if chosen := [key for key, value in state.items() if "indices" in key and value]:
        raise UserError(
            f"{folder}: a selection of rows (state.json has {chosen[0]}), which is not read; save the data set again "
            "after `flatten_indices()`"
        )
    return shards


def _check_shards_inside(folder: Path, named_shards: Sequence[tuple[str, Path]]) -> None:
    """Raise UserError for a shard outside of its folder, also where a part of the way is a link."""
    for name, shard in named_shards:
        if not shard.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"{folder / 'state.json'} names {name!r}, a file outside of its folder, which is not read; if that is "
                f"a link of your own (a download cache has such), copy it with what it links to: cp -rL {folder} PLACE"
            )


def _check_stream_end(shard: Path) -> None:
    """Raise UserError for a stream that was cut off after a batch: it would read as a shorter split."""
    with shard.open("rb") as file:
        file.seek(max(0, shard.stat().st_size - len(END_OF_STREAM)))
        if file.read() != END_OF_STREAM:
            raise UserError(f"{shard}: this Arrow stream has no end; {AGAIN}")


def read_split(
    split: ReleasedSplit, columns: tuple[str, ...], progress: str | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Batches of rows with these columns. `progress` is the label of a bar over bytes; None: no bar.

    Raises UserError naming the shard for a column that is missing or of another type, and for a damaged shard.
    """
    size = sum(shard.stat().st_size for shard in split.shards)
    with Progress(total=size, desc=progress, unit="B", unit_scale=True, disable=not progress) as bar:
        for shard in split.shards:
            # not memory-mapped: the pages of a map count as ours until the kernel wants them back
            with pa.OSFile(str(shard)) as file:
                try:
                    yield from _read_shard(file, shard, columns, bar)
                except (pa.ArrowInvalid, OSError) as error:
                    raise UserError(f"{shard}: not readable as an Arrow stream ({error}); {AGAIN}") from error


def _read_shard(
    file: pa.OSFile, shard: Path, columns: tuple[str, ...], bar: Progress
) -> Iterator[list[dict[str, Any]]]:
    before = 0
    rows = 0
    with pa.ipc.open_stream(file) as reader:
        _check_columns(reader.schema, shard, columns)
        for batch in reader:
            read = batch.select(list(columns))
            for start in range(0, len(read), BATCH_ROWS):
                part = read.slice(start, BATCH_ROWS)
                if damaged := rows_without_utf8(part):
                    raise UserError(f"{shard}, row {rows + damaged[0]}: text that is no UTF-8; {AGAIN}")
                rows += len(part)
                yield part.to_pylist()
            bar.update(file.tell() - before)
            before = file.tell()
    bar.update(shard.stat().st_size - before)


def _check_columns(schema: pa.Schema, shard: Path, columns: Sequence[str]) -> None:
    """Raise UserError for a column that is missing or of another type."""
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise UserError(
            f"{shard}: no column {', '.join(missing)}; it has {', '.join(schema.names)}. "
            "Is this the Reddit-v2 release, and the right folder of it?"
        )
    for name in columns:
        kind = schema.field(name).type
        wanted, said = COLUMNS[name]
        if not any(is_like(kind, alternative, null=True) for alternative in wanted):
            raise UserError(f"{shard}: column {name} is {kind}, not a list of {said}; is this the Reddit-v2 release?")


def clean_row(row: Mapping[str, Any], target: Target) -> tuple[dict[str, Any] | None, list[str]]:
    """(the row without sample_id, what was repaired), or (None, [why it is set aside])."""
    prompt = _only_text(row["prompt"], "user")
    if prompt is None:
        return None, [NO_PROMPT]
    repairs: list[str] = []
    truth = []
    for entry in row[TRUTH] or []:
        pair, repair = _clean_pair(entry)
        if repair:
            repairs.append(repair)
        if pair:
            truth.append(pair)
    if row[TRUTH] is None:
        repairs.append("null ground truth: written as an empty list")
    if target.truth and not truth:
        return None, ["no ground truth", *repairs]
    seen = [title for title in row["seen_titles"] or [] if title is not None and title.strip()]
    if row["seen_titles"] is None or len(seen) < len(row["seen_titles"]):
        repairs.append("null or blank seen titles: taken out")
    cleaned = {"prompt": message("user", prompt), "seen_titles": seen, TRUTH: truth}
    if target.completion:
        completion = _only_text(row["completion"], "assistant")
        if completion is None:
            return None, ["the completion is not exactly one assistant message with text"]
        cleaned["completion"] = message("assistant", completion)
    return cleaned, repairs


def _only_text(messages: list[Mapping[str, Any]] | None, role: str) -> str | None:
    if not messages or len(messages) != 1 or messages[0] is None or messages[0].get("role") != role:
        return None
    text = messages[0].get("content")
    return text if text and text.strip() else None


def _clean_pair(entry: Any) -> tuple[Pair | None, str]:
    """([title, "YYYY"], what was repaired or ""). Years are read from any type; {title, year} is a pair too."""
    values = [entry.get("title"), entry.get("year")] if isinstance(entry, Mapping) else entry
    title, raw_year = values if values and len(values) == 2 else (None, None)
    year = parse_year(raw_year)
    if not isinstance(title, str) or not title.strip() or year is None:
        return None, f"ground truth {entry!r} has no title or no year: taken out"
    if raw_year != str(year):
        return (title, str(year)), f"ground truth {title!r}: year {raw_year!r} written as '{year}'"
    return (title, raw_year), ""
