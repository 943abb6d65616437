"""A model's answers to prompts, stored as parquet and reused while the model and the sampling stay the same.

GENERATIONS.parquet has one row per prompt and, in its metadata, a key: a hash of the checkpoint's contents and the
sampling settings. A copied or moved checkpoint keeps its answers; one with different weights, or another tokenizer or
chat template, does not. The file is rewritten as answers arrive (Store.keep), so an interrupted evaluation continues
where it stopped.

Nothing here is specific to recommendations: a judge's answers are stored the same way.
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
REWRITE_SHARE = 1 / 20  # the file is rewritten when it lacks this share of new answers


class GenerationRequest(NamedTuple):
    """The prompts for a model, and where its answers are stored.

    Attributes:
        model_path: a Hugging Face folder or id.
        prompts: prompt_id -> messages.
        path: the parquet file of the answers.
        constraint: None for free text.
    """

    model_path: str
    prompts: Mapping[str, Messages]
    path: Path
    constraint: Constraint | None = None


def load_or_generate_answers(
    request: GenerationRequest, *, placement: Placement = ONE, progress: bool = True, **settings: Any
) -> tuple[dict[str, Answer], int]:
    """Load a model's stored answers, and generate the missing ones with vLLM.

    Args:
        request: the model and its prompts.
        placement: where replicas run.
        progress: whether to show a progress bar.
        **settings: arguments of convrec.inference.generate.generate (max_tokens, max_prompt_tokens, temperature, seed,
            ...). Greedy answers do not depend on the seed.

    Returns:
        prompt_id -> answer, and how many answers were generated now. vLLM's log is next to the stored answers.

    Raises:
        UserError: the model's folder is incomplete; before vLLM starts.
    """
    folder = Path(request.model_path)
    if folder.is_dir():
        check_hugging_face(folder)
    # a Hugging Face id is identified by its name
    inputs = {"model": fingerprint(folder) if folder.is_dir() else request.model_path, **settings}
    if request.constraint:  # the trie's file name includes a hash of its contents
        excluded = sorted(request.constraint.exclude.items())
        inputs["constraint"] = [Path(request.constraint.trie).name, request.constraint.num_items, excluded]
    if settings.get("temperature") == 0:
        inputs.pop("seed", None)
    store = Store(inputs, request.prompts, request.path)
    if missing := store.missing():
        with store.flush_on_exit():
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
    """The stored answers to some prompts. Answers from other inputs are replaced, with a line on stderr.

    Args:
        inputs: everything that determines the answers, as JSON values.
        prompts: prompt_id -> messages.
        path: the parquet file.

    Raises:
        UserError: the file is damaged.
    """

    def __init__(self, inputs: Mapping[str, Any], prompts: Mapping[str, Messages], path: Path) -> None:
        self._prompts = prompts
        self._path = path
        self._key = digest(dict(inputs)).encode()
        self._answers: dict[str, Answer] = {}
        if path.exists():
            table = _read(path)
            if (table.schema.metadata or {}).get(KEY) == self._key:
                self._answers = {row["prompt_id"]: row for row in table.to_pylist()}
            else:
                tqdm.write(
                    f"{path}: replacing {table.num_rows} answers from another model or with other settings",
                    file=sys.stderr,
                )
        self._missing = [name for name in prompts if name not in self._answers]
        self._num_written = len(self._answers)

    def missing(self) -> list[Messages]:
        """Return the prompts that had no answer when the store was opened."""
        return [self._prompts[name] for name in self._missing]

    def keep(self, answers: Sequence[tuple[int, Answer]]) -> None:
        """Store new answers: (position in `missing`, answer).

        The whole file is rewritten when one answer in twenty is new, and with the last answer. An evaluation with
        thousands of prompts is written after each batch; with hundreds of thousands, writing all answers each time
        would take hours.
        """
        for position, answer in answers:
            self._answers[self._missing[position]] = {"prompt_id": self._missing[position], **answer}
        num_new = len(self._answers) - self._num_written
        is_complete = self._prompts.keys() <= self._answers.keys()
        if is_complete or num_new >= REWRITE_SHARE * self._num_written:
            self._write()

    @contextmanager
    def flush_on_exit(self) -> Iterator[None]:
        """Write all new answers to disk when the block ends, even after an error or Ctrl-C."""
        try:
            yield
        finally:
            if len(self._answers) > self._num_written:
                self._write()

    def _write(self) -> None:
        self._num_written = len(self._answers)
        schema = SCHEMA.with_metadata({KEY: self._key})
        write_table(self._path, pa.Table.from_pylist(list(self._answers.values()), schema))

    def answers(self) -> dict[str, Answer]:
        """Return the answers by prompt_id, in the order of the prompts; prompts without an answer are left out."""
        return {name: self._answers[name] for name in self._prompts if name in self._answers}


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:  # OSError: a damaged page
        raise UserError(
            "answers.damaged-file", f"{path}: not readable as parquet ({error}). Remove it to generate again."
        ) from None
