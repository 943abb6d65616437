"""A model's answers to prompts, stored as parquet and used again while the model and the sampling are the same.

GENERATIONS.parquet has a row a prompt and, in its metadata, the key of what was asked: a hash of the contents of the
checkpoint and of the sampling settings. A copied or moved checkpoint has its answers; one with other weights, another
tokenizer or chat template, does not. The file is renewed as answers come (Store.keep): an interrupted evaluation goes
on where it was.

Nothing here knows about recommendations: a judge's prompts are stored the same way.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from convrec.base.errors import UserError
from convrec.base.files import write_table
from convrec.base.same_request import digest
from convrec.checkpoints.files import check_hugging_face, fingerprint
from convrec.inference.engines.offline import Answer
from convrec.inference.engines.placement import Placement
from convrec.inference.generate import ONE, Constraint, Messages, generate

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
RENEWED_BY = 1 / 20  # the share of new answers at which the file is written again


class GenerationRequest(NamedTuple):
    """What one model is asked: prompts by their prompt_id, and where its answers are kept."""

    model_path: str
    prompts: Mapping[str, Messages]
    path: Path
    constraint: Constraint | None = None


def model_answers(
    request: GenerationRequest, *, placement: Placement = ONE, progress: bool = True, **settings: Any
) -> tuple[dict[str, Answer], int]:
    """prompt_id -> answer of a Hugging Face folder or id with vLLM, and how many had to be generated now.

    settings: convrec.inference.generate's (max_tokens, max_prompt_tokens, temperature, seed, ...). Greedy answers are
    the same with any seed. vLLM's log goes beside the answers that it was started for. Raises UserError for a model
    that is half written, before vLLM starts.
    """
    folder = Path(request.model_path)
    if folder.is_dir():
        check_hugging_face(folder)
    # an id is its own name
    what = {"model": fingerprint(folder) if folder.is_dir() else request.model_path, **settings}
    if request.constraint:  # the trie's name has the key of its contents
        excluded = sorted(request.constraint.exclude.items())
        what["constraint"] = [Path(request.constraint.trie).name, request.constraint.num_items, excluded]
    if settings.get("temperature") == 0:
        what.pop("seed", None)
    store = Store(what, request.prompts, request.path)
    if missing := store.missing():
        with store.written_at_the_end():
            generate(
                request.model_path,
                missing,
                placement=placement,
                log_file=request.path.with_name("vllm.log"),
                progress=progress,
                on_batch=store.keep,
                constraint=request.constraint,
                **settings,
            )
    return store.answers(), len(missing)


class Store:
    """The answers at `path` to one `what`. Answers to another one are replaced, with a line on stderr.

    what: everything that determines the answers, as JSON can write it.
    """

    def __init__(self, what: Mapping[str, Any], prompts: Mapping[str, Messages], path: Path) -> None:
        self._prompts = prompts
        self._path = path
        self._key = digest(dict(what)).encode()
        self._known: dict[str, Answer] = {}
        if path.exists():
            table = _read(path)
            if (table.schema.metadata or {}).get(KEY) == self._key:
                self._known = {row["prompt_id"]: row for row in table.to_pylist()}
            else:
                tqdm.write(
                    f"{path}: replacing {table.num_rows} answers of another model or with other settings",
                    file=sys.stderr,
                )
        self._missing = [name for name in prompts if name not in self._known]
        self._written = len(self._known)

    def missing(self) -> list[Messages]:
        """The prompts without an answer when this was made."""
        return [self._prompts[name] for name in self._missing]

    def keep(self, answers: Sequence[tuple[int, Answer]]) -> None:
        """Take the answers that have come: (position in `missing`, answer).

        The whole file is written again when a twentieth of its answers is new, and with the last one: after each batch
        of an evaluation of some thousands; of hundreds of thousands, writing all of them each time would take hours.
        """
        for position, answer in answers:
            self._known[self._missing[position]] = {"prompt_id": self._missing[position], **answer}
        new = len(self._known) - self._written
        complete = self._prompts.keys() <= self._known.keys()
        if complete or new >= RENEWED_BY * self._written:
            self._write()

    @contextmanager
    def written_at_the_end(self) -> Iterator[None]:
        """What was kept is on the disk when the block ends, also by an error or Ctrl-C."""
        try:
            yield
        finally:
            if len(self._known) > self._written:
                self._write()

    def _write(self) -> None:
        self._written = len(self._known)
        schema = SCHEMA.with_metadata({KEY: self._key})
        write_table(self._path, pa.Table.from_pylist(list(self._known.values()), schema))

    def answers(self) -> dict[str, Answer]:
        """By prompt_id, in the order of the prompts; a prompt that was not kept has none."""
        return {name: self._known[name] for name in self._prompts if name in self._known}


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:  # OSError: a damaged page
        raise UserError(f"{path}: not readable as parquet ({error}); remove it to generate again") from None
