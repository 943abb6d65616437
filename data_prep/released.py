"""Read the released download, a Hugging Face `save_to_disk` folder, in record batches and clean its rows.

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
# column -> the types it may have (null if a split has no value at all), and their name in messages
COLUMNS = {
    "prompt": ([MESSAGES], "{content, role} messages"),
    "completion": ([MESSAGES], "{content, role} messages"),
    "seen_titles": ([pa.list_(pa.string())], "titles"),
    TRUTH: ([pa.list_(pa.list_(pa.string())), pa.list_(_TITLED)], "[title, year] pairs"),
}
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
INCOMPLETE = "the download looks incomplete: fetch this folder again"


class Target(NamedTuple):
    """A file to write, and the folders its rows may come from; the first that exists is used."""

    name: str
    folders: tuple[str, ...]
    completion: bool = False  # whether rows need a completion, for SFT
    truth: bool = False  # whether rows need ground truth

    @property
    def schema(self) -> pa.Schema:
        return SFT_SCHEMA if self.completion else RL_SCHEMA


class ReleasedSplit(NamedTuple):
    """A split of the release: its folder and its shards."""

    name: str  # folder relative to the source
    shards: list[Path]


def find_split(source: Path, candidates: Sequence[str]) -> ReleasedSplit | None:
    """Return the split in the first folder that exists; None if none does.

    Raises:
        UserError: Its state.json or shards are missing or damaged.
    """
    name = next((candidate for candidate in candidates if (source / candidate).is_dir()), None)
    if name is None:
        return None
    folder = source / name
    named_shards = _read_shards(folder)
    _check_shards_inside(folder, named_shards)
    shards = [shard for _, shard in named_shards]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise UserError(
            "reddit.missing-shard", f"{folder}: state.json names {', '.join(missing)}, but no such file; {INCOMPLETE}"
        )
    for shard in shards:
        _check_stream_end(shard)
    return ReleasedSplit(name, shards)


def _read_shards(folder: Path) -> list[tuple[str, Path]]:
    """Return (name, file) for each shard in a folder's state.json. Raises UserError if there is none, or an index."""
    state_file = folder / "state.json"
    if not state_file.is_file():
        raise UserError(
            "reddit.no-state-file",
            f"{folder}: no state.json, so `save_to_disk` did not write this folder; {INCOMPLETE}",
        )
    try:
        state = json.loads(state_file.read_text(encoding="utf-8"))
        shards = [(entry["filename"], folder / entry["filename"]) for entry in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            "reddit.damaged-state-file", f"{state_file}: not the state of a dataset ({error!r}); {INCOMPLETE}"
        ) from error
    if not shards:
        raise UserError(
            "reddit.no-shards", f"{state_file}: names no shard (_data_files is empty), so there is no row; {INCOMPLETE}"
        )
    indices = [key for key, value in state.items() if "indices" in key and value]
    if indices:
        raise UserError(
            "reddit.selected-rows",
            f"{folder}: a selection of rows (state.json has {indices[0]}), which is not supported; save the data set "
            "again after `flatten_indices()`",
        )
    return shards


def _check_shards_inside(folder: Path, named_shards: Sequence[tuple[str, Path]]) -> None:
    """Raise UserError for a shard outside of its folder, also if a link leads there."""
    for name, shard in named_shards:
        if not shard.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                "reddit.shard-outside-folder",
                f"{folder / 'state.json'}: names {name!r}, a file outside of its folder, which is not read; if this is "
                f"a link of a download cache, copy the folder with the files it links to: cp -rL {folder} PLACE",
            )


def _check_stream_end(shard: Path) -> None:
    """Raise UserError for a stream that was cut off after a batch: it would look like a shorter split."""
    with shard.open("rb") as file:
        file.seek(max(0, shard.stat().st_size - len(END_OF_STREAM)))
        if file.read() != END_OF_STREAM:
            raise UserError("reddit.truncated-shard", f"{shard}: this Arrow stream has no end; {INCOMPLETE}")


def read_split(
    split: ReleasedSplit, columns: tuple[str, ...], progress: str | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Read a split in batches of rows.

    Args:
        split: the split.
        columns: the columns to read.
        progress: label of a progress bar over bytes; None: no bar.

    Yields:
        At most BATCH_ROWS rows.

    Raises:
        UserError: A column of a shard is missing or has another type, or the shard is damaged.
    """
    size = sum(shard.stat().st_size for shard in split.shards)
    with Progress(total=size, desc=progress, unit="B", unit_scale=True, disable=not progress) as bar:
        for shard in split.shards:
            # not memory-mapped: mapped pages count as our memory until the kernel reclaims them
            with pa.OSFile(str(shard)) as file:
                try:
                    yield from _read_shard(file, shard, columns, bar)
                except (pa.ArrowInvalid, OSError) as error:
                    raise UserError(
                        "reddit.damaged-shard", f"{shard}: not readable as an Arrow stream ({error}); {INCOMPLETE}"
                    ) from error


def _read_shard(
    file: pa.OSFile, shard: Path, columns: tuple[str, ...], bar: Progress
) -> Iterator[list[dict[str, Any]]]:
    before = 0
    rows = 0
    with pa.ipc.open_stream(file) as reader:
        _check_columns(reader.schema, shard, columns)
        for batch in reader:
            selected = batch.select(list(columns))
            for start in range(0, len(selected), BATCH_ROWS):
                part = selected.slice(start, BATCH_ROWS)
                damaged = rows_without_utf8(part)
                if damaged:
                    row = rows + damaged[0]
                    raise UserError("reddit.invalid-utf8", f"{shard}: row {row}: text is not UTF-8; {INCOMPLETE}")
                rows += len(part)
                yield part.to_pylist()
            bar.update(file.tell() - before)
            before = file.tell()
    bar.update(shard.stat().st_size - before)


def _check_columns(schema: pa.Schema, shard: Path, columns: Sequence[str]) -> None:
    """Raise UserError for a column that is missing or has another type."""
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise UserError(
            "reddit.missing-column",
            f"{shard}: no column {', '.join(missing)}; its columns are {', '.join(schema.names)}. Is this the right "
            "folder of the Reddit-v2 release?",
        )
    for name in columns:
        kind = schema.field(name).type
        types, description = COLUMNS[name]
        if not any(is_like(kind, alternative, null=True) for alternative in types):
            raise UserError(
                "reddit.wrong-column-type",
                f"{shard}: column {name} is {kind}, not a list of {description}; is this the Reddit-v2 release?",
            )


def clean_row(row: Mapping[str, Any], target: Target) -> tuple[dict[str, Any] | None, list[str]]:
    """Clean a row.

    Returns:
        The row without sample_id and the repairs made; or None and the reason why it is set aside.
    """
    prompt = _get_only_text(row["prompt"], "user")
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
        repairs.append("null or blank seen titles: removed")
    cleaned = {"prompt": message("user", prompt), "seen_titles": seen, TRUTH: truth}
    if target.completion:
        completion = _get_only_text(row["completion"], "assistant")
        if completion is None:
            return None, ["the completion is not exactly one assistant message with text"]
        cleaned["completion"] = message("assistant", completion)
    return cleaned, repairs


def _get_only_text(messages: list[Mapping[str, Any]] | None, role: str) -> str | None:
    if not messages or len(messages) != 1 or messages[0] is None or messages[0].get("role") != role:
        return None
    text = messages[0].get("content")
    return text if text and text.strip() else None


def _clean_pair(entry: Any) -> tuple[Pair | None, str]:
    """Return [title, "YYYY"] and the repair made, "" for none. Accepts years of any type, and {title, year}."""
    values = [entry.get("title"), entry.get("year")] if isinstance(entry, Mapping) else entry
    title, raw_year = values if values and len(values) == 2 else (None, None)
    year = parse_year(raw_year)
    if not isinstance(title, str) or not title.strip() or year is None:
        return None, f"ground truth {entry!r} has no title or no year: removed"
    if raw_year != str(year):
        return (title, str(year)), f"ground truth {title!r}: year {raw_year!r} written as '{year}'"
    return (title, raw_year), ""
