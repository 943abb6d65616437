"""verl's datasets over the released columns: conversations for the rollout, demonstrations for SFT.

Both tokenize a prompt in the same way, so SFT trains on the tokens that the rollout sees. A conversation that is too
long loses its beginning; the instruction and the end, which contains the request, stay.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from omegaconf import DictConfig
from torch.utils.data import Dataset
from verl.utils.dataset.rl_dataset import RLHFDataset

from convrec.base.errors import UserError
from convrec.data.arrow_types import cast_table
from convrec.data.chat import Message, encode, fit_prompt, fits, render_prompt, split_control_tokens
from convrec.data.schema import DEMONSTRATION_COLUMNS, PROMPT_COLUMNS, SFT_SCHEMA, TRUTH, is_demonstration_table
from convrec.data.template import extract_answer

VALIDATION_SEED = 3407  # independent of the run's seed, so that runs are compared on the same rows


def read_rows(files: list[str], columns: tuple[str, ...], max_samples: int, seed: int | None) -> pa.Table:
    """Read columns of several files as one table; files may have different Arrow types for texts and lists.

    Args:
        files: parquet files.
        columns: names of columns of `SFT_SCHEMA`, which has their types.
        max_samples: if above 0 and below the number of rows, draw this many rows and keep their order; else read all.
        seed: random seed of the draw; None draws other rows each time.
    """
    schema = pa.schema([SFT_SCHEMA.field(name) for name in columns])
    table = pa.concat_tables([cast_table(pq.read_table(path, columns=list(columns)), schema) for path in files])
    return draw_rows(table, max_samples, seed) if 0 < max_samples < len(table) else table


def draw_rows(table: pa.Table, count: int, seed: int | None) -> pa.Table:
    """Draw rows of a table without replacement, and keep their order.

    Args:
        table: the table.
        count: how many rows, at most all.
        seed: random seed of the draw; None draws other rows each time.
    """
    indices = np.random.default_rng(seed).choice(len(table), size=count, replace=False)
    is_drawn = np.zeros(len(table), bool)
    is_drawn[indices] = True
    # `take` joins the chunks of a column first, and fails if they have more than 2 GiB of text.
    return table.filter(pa.array(is_drawn))


def read_row(table: pa.Table, row: int) -> dict[str, Any]:
    """Read one row, in time and memory that do not depend on the size of the table."""
    values: list[dict[str, Any]] = table.slice(row, 1).to_pylist()  # `take` would copy the table
    return values[0]


def iter_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield all rows; only one batch of them at a time is in Python's memory."""
    for batch in table.to_batches(max_chunksize=1024):
        yield from batch.to_pylist()


def make_rl_item(
    item: int, prompt: list[Message], source: str, truth: Any, extra_info: dict[str, Any]
) -> dict[str, Any]:
    """Return the fields of a row that verl's rollout and reward read.

    Args:
        item: the row's index in the data set.
        prompt: the messages.
        source: name of the data source, for verl's metrics.
        truth: the ground truth, in the form of the reward function.
        extra_info: further entries of `extra_info`, besides `index`.
    """
    return {
        "raw_prompt": prompt,
        "data_source": source,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": item, **extra_info},
        "index": item,
        "tools_kwargs": {},
        "interaction_kwargs": {},
        "dummy_tensor": torch.tensor([0], dtype=torch.uint8),  # verl's collate function needs a tensor
    }


class ConvRecDataset(RLHFDataset):
    """Rows of `schema.PROMPT_COLUMNS` for verl's rollout and reward (`data.custom_cls`)."""

    conversations: list[list[int]] | None = None  # after use_for_validation: the rows of each distinct prompt

    def _read_files_and_tokenize(self) -> None:
        self.dataframe = read_rows(self.data_files, PROMPT_COLUMNS, self.max_samples, self.seed)

    def use_for_validation(self, together: bool = True) -> None:
        """Draw the rows of `max_samples` with VALIDATION_SEED, and merge rows with equal prompts.

        Greedy answers to equal prompts are equal, so one answer is generated and scored for all rows of a prompt.

        Args:
            together: False keeps one item per row.
        """
        self.dataframe = read_rows(self.data_files, PROMPT_COLUMNS, self.max_samples, VALIDATION_SEED)
        if not together:
            return
        rows_by_prompt: dict[str, list[int]] = {}
        for row, prompt in enumerate(self.dataframe["prompt"].to_pylist()):
            rows_by_prompt.setdefault(json.dumps(prompt, sort_keys=True), []).append(row)
        self.conversations = list(rows_by_prompt.values())

    def __len__(self) -> int:
        return len(self.dataframe) if self.conversations is None else len(self.conversations)

    def __getitem__(self, item: int) -> dict[str, Any]:
        indices = [item] if self.conversations is None else self.conversations[item]
        rows = [read_row(self.dataframe, index) for index in indices]
        row = rows[0]
        prompt = fit_prompt(self.tokenizer, row["prompt"], self.max_prompt_length, **self.apply_chat_template_kwargs)
        truths = [{"groundtruth": r[TRUTH], "seen": r["seen_titles"]} for r in rows]
        truth = truths[0] if self.conversations is None else {"rows": truths}
        return make_rl_item(item, prompt, "convrec", truth, {"sample_id": row["sample_id"]})


class DemonstrationDataset(Dataset):
    """Rows of `schema.DEMONSTRATION_COLUMNS` for verl's SFT trainer; the loss is on the completion only.

    Conversations that are too long are shortened. A judge's prompt cannot be shortened, so its row is left out.

    Args:
        parquet_files: one file or several.
        tokenizer: the policy's tokenizer.
        config: section `data` of the run's config.
        processor: not used; verl passes it.
        max_samples: rows to draw; -1 and 0 for all.

    Raises:
        UserError: every demonstration of a judge is too long. Reading a row raises it if the completion alone is too
            long, or if the chat template does not continue its own generation prompt.
    """

    def __init__(
        self,
        parquet_files: str | list[str],
        tokenizer: Any,
        config: DictConfig,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self.table = read_rows(files, DEMONSTRATION_COLUMNS, max_samples, config.get("seed"))
        self.tokenizer = tokenizer
        self.max_length = config.max_length
        self.template_kwargs = dict(config.get("apply_chat_template_kwargs") or {})
        if all(map(is_demonstration_table, files)):
            self.table = self._select_short_rows(files)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, item: int) -> dict[str, torch.Tensor]:
        row = read_row(self.table, item)
        completion_ids = encode(self.tokenizer, self._completion_text(row))
        room = self.max_length - len(completion_ids)
        if room <= 0:
            raise UserError(
                "training.completion-too-long",
                f"{row['sample_id']}: the completion has {len(completion_ids)} tokens, without its prompt, but "
                f"data.max_length={self.max_length}: raise MAX_LENGTH",
            )
        prompt_ids = self._encode_prompt(split_control_tokens(row["prompt"], self.tokenizer))
        if len(prompt_ids) > room:
            shortened = fit_prompt(self.tokenizer, row["prompt"], room, **self.template_kwargs)
            prompt_ids = self._encode_prompt(shortened)
        input_ids = torch.tensor(prompt_ids + completion_ids)
        loss_mask = torch.zeros_like(input_ids)
        loss_mask[len(prompt_ids) :] = 1
        return {"input_ids": input_ids, "position_ids": torch.arange(len(input_ids)), "loss_mask": loss_mask}

    def _encode_prompt(self, messages: list[Message]) -> list[int]:
        return encode(self.tokenizer, render_prompt(self.tokenizer, messages, **self.template_kwargs))

    def _select_short_rows(self, files: list[str]) -> pa.Table:
        def render(row: dict[str, Any]) -> str:
            prompt = split_control_tokens(row["prompt"], self.tokenizer)
            start = render_prompt(self.tokenizer, prompt, **self.template_kwargs)
            return start + self._completion_text(row)

        is_short = [fits(self.tokenizer, render(row), self.max_length) for row in iter_rows(self.table)]
        if not any(is_short):
            raise UserError(
                "training.demonstrations-too-long",
                f"{', '.join(files)}: every demonstration has more than MAX_LENGTH={self.max_length} tokens: raise it",
            )
        num_long = is_short.count(False)
        if num_long:
            print(f"left out {num_long} of {len(is_short)} demonstrations over MAX_LENGTH={self.max_length}")
        return self.table.filter(pa.array(is_short))

    def _completion_text(self, row: dict[str, Any]) -> str:
        """Return the template's text after the generation prompt, up to and including the end-of-turn token."""
        prompt = split_control_tokens(row["prompt"], self.tokenizer)
        completion = split_control_tokens(row["completion"], self.tokenizer)
        rendered = self.tokenizer.apply_chat_template(prompt + completion, tokenize=False, **self.template_kwargs)
        start = render_prompt(self.tokenizer, prompt, **self.template_kwargs)
        content = completion[0]["content"].strip()  # Llama's template strips it
        text = extract_answer(start, rendered)
        if text is None or content not in text:
            raise UserError(
                "training.chat-template",
                f"{row['sample_id']}: the chat template does not continue its own generation prompt: set "
                "custom_chat_template",
            )
        return text.rstrip()
