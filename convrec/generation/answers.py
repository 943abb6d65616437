"""A model's answers to prompts, stored as parquet and used again while the model and the sampling are the same.

GENERATIONS.parquet has a row a prompt and, in its metadata, the key of what was asked: a hash of the contents of the
checkpoint and of the sampling settings. A copied or moved checkpoint has its answers; one with other weights, another
tokenizer or chat template, does not. The file is renewed after every batch: an interrupted evaluation goes on where it
was.

Nothing here knows about recommendations: a judge's prompts are stored the same way.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from convrec.checkpoints.files import check_hugging_face, fingerprint
from convrec.errors import UserError
from convrec.files import write_table
from convrec.generation.generate import Constraint, GenerationRow, Messages, generate

KEY = b"convrec.generation_key"
SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("prompt_truncated", pa.bool_()),
    ]
)
Answer = dict[str, Any]  # a row of SCHEMA
# (prompts, what to do with every finished batch: position in prompts and answer) -> None
Answerer = Callable[[list[Messages], Callable[[list[tuple[int, Answer]]], None]], None]


def prompt_id(prompt: Sequence[Mapping[str, str]]) -> str:
    """Stable name of a conversation: equal prompts have equal ids."""
    return hashlib.sha256(json.dumps([[m["role"], m["content"]] for m in prompt]).encode()).hexdigest()[:16]


def model_answers(
    model_path: str,
    prompts: Mapping[str, Messages],
    path: Path,
    *,
    tensor_parallel: int = 1,
    progress: bool = True,
    constraint: Constraint | None = None,
    **settings: Any,
) -> tuple[dict[str, Answer], int]:
    """prompt_id -> answer of a Hugging Face folder or id with vLLM, and how many had to be generated now.

    constraint: its `exclude` has one list for each of `prompts`.
    settings: convrec.generation.generate's (max_tokens, max_prompt_tokens, temperature, seed, ...); one answer each.
    Greedy answers are the same with any seed. vLLM's log goes beside `path`. Raises UserError for a model that is half
    written, before vLLM starts.
    """
    folder = Path(model_path)
    if folder.is_dir():
        check_hugging_face(folder)

    exclude_of = dict(zip(map(prompt_id, prompts.values()), constraint.exclude, strict=True)) if constraint else {}

    def answer(missing: list[Messages], keep: Callable[[list[tuple[int, Answer]]], None]) -> None:
        exclude = [exclude_of.get(prompt_id(prompt), []) for prompt in missing]
        generate(
            model_path,
            missing,
            tensor_parallel=tensor_parallel,
            log_file=path.with_name("vllm.log"),
            progress=progress,
            on_batch=lambda rows: keep([(row.prompt_index, _record(row)) for row in rows]),
            constraint=replace(constraint, exclude=exclude) if constraint else None,
            **settings,
        )

    name = fingerprint(folder) if folder.is_dir() else model_path  # a Hugging Face id stands for itself
    what = {"model": name, **settings}
    if constraint:  # the trie's name has the key of its contents
        what["constraint"] = [Path(constraint.trie).name, constraint.num_items, sorted(exclude_of.items())]
    if settings.get("temperature") == 0:
        what.pop("seed", None)
    return stored_answers(what, prompts, path, answer)


def stored_answers(
    what: Mapping[str, Any], prompts: Mapping[str, Messages], path: Path, answer: Answerer
) -> tuple[dict[str, Answer], int]:
    """prompt_id -> answer from `path` where it has them for the same `what`, else from `answer`; how many it was asked.

    what: everything that determines the answers, as JSON can write it. A prompt that `answer` does not keep has none.
    Answers in `path` to another `what` are replaced, with a line on stderr.
    """
    key = hashlib.sha256(json.dumps(dict(what), sort_keys=True).encode()).hexdigest().encode()
    known: dict[str, Answer] = {}
    if path.exists():
        table = _read(path)
        if (table.schema.metadata or {}).get(KEY) == key:
            known = {row["prompt_id"]: row for row in table.to_pylist()}
        else:
            tqdm.write(
                f"{path}: replacing {table.num_rows} answers of another model or with other settings", file=sys.stderr
            )
    missing = [name for name in prompts if name not in known]

    def keep(answers: list[tuple[int, Answer]]) -> None:
        for position, record in answers:
            known[missing[position]] = {"prompt_id": missing[position], **record}
        write_table(path, pa.Table.from_pylist(list(known.values()), SCHEMA.with_metadata({KEY: key})))

    if missing:
        answer([prompts[name] for name in missing], keep)
    return {name: known[name] for name in prompts if name in known}, len(missing)


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: not readable as parquet ({error}); remove it to generate again") from None


def _record(row: GenerationRow) -> Answer:
    return {
        "text": row.text,
        "token_ids": row.token_ids,
        "finish_reason": row.finish_reason,
        "prompt_tokens": row.prompt_tokens,
        "prompt_truncated": row.prompt_truncated,
    }
