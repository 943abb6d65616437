"""The released columns as verl's datasets: conversations for the rollout, demonstrations for SFT.

Both tokenize a prompt the same way, so what SFT trains on is what the rollout sees. A conversation that is too long
loses its start; the instruction and the end, which holds the request, stay.
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
from convrec.data.arrow_types import table_as
from convrec.data.chat import Message, encode, fit_prompt, fits, render_prompt, without_control_tokens
from convrec.data.schema import DEMONSTRATION_COLUMNS, PROMPT_COLUMNS, SFT_SCHEMA, TRUTH, is_demonstration_table
from convrec.data.template import answer_after

VALIDATION_SEED = 3407  # not the run's: runs with different seeds are compared on the same rows


def read_rows(files: list[str], columns: tuple[str, ...], max_samples: int, seed: int | None) -> pa.Table:
    """Read the files' columns as one table, whichever Arrow types each file has for texts and lists.

    Args:
        files: parquet files.
        columns: of `SFT_SCHEMA`, in its types.
        max_samples: where it is above 0 and below the number of rows, that many rows are drawn, in order.
        seed: of the draw.
    """
    schema = pa.schema([SFT_SCHEMA.field(name) for name in columns])
    table = pa.concat_tables([table_as(pq.read_table(path, columns=list(columns)), schema) for path in files])
    return draw_rows(table, max_samples, seed) if 0 < max_samples < len(table) else table


def draw_rows(table: pa.Table, count: int, seed: int | None) -> pa.Table:
    """Draw `count` rows of a table, in their order."""
    chosen = np.random.default_rng(seed).choice(len(table), size=count, replace=False)
    is_chosen = np.zeros(len(table), bool)
    is_chosen[chosen] = True
    # `take` joins the chunks of a column first, and fails where they have more than 2 GiB of text.
    return table.filter(pa.array(is_chosen))


def read_row(table: pa.Table, row: int) -> dict[str, Any]:
    """Read one row, whose time and memory do not depend on the size of the table."""
    values: list[dict[str, Any]] = table.slice(row, 1).to_pylist()  # `take` would copy the table
    return values[0]


def iter_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Iterate over all rows; a batch of them at a time is in Python's memory."""
    for batch in table.to_batches(max_chunksize=1024):
        yield from batch.to_pylist()


def rl_item(item: int, prompt: list[Message], source: str, truth: Any, extra_info: dict[str, Any]) -> dict[str, Any]:
    """What verl's rollout and reward read of a row."""
    return {
        "raw_prompt": prompt,
        "data_source": source,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": item, **extra_info},
        "index": item,
        "tools_kwargs": {},
        "interaction_kwargs": {},
        "dummy_tensor": torch.tensor([0], dtype=torch.uint8),  # verl's collate wants one tensor
    }


class ConvRecDataset(RLHFDataset):
    """Rows of `schema.PROMPT_COLUMNS` as verl's rollout and reward read them (`data.custom_cls`)."""

    conversations: list[list[int]] | None = None  # after use_for_validation: the rows of each distinct prompt

    def _read_files_and_tokenize(self) -> None:
        self.dataframe = read_rows(self.data_files, PROMPT_COLUMNS, self.max_samples, self.seed)

    def use_for_validation(self, together: bool = True) -> None:
        """Make an item of each distinct prompt, where they go `together`: greedy answers to equal prompts are equal, so
        one is generated and scored once for every row of it. `max_samples` then draws its rows with VALIDATION_SEED."""
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
        return rl_item(item, prompt, "convrec", truth, {"sample_id": row["sample_id"]})


class DemonstrationDataset(Dataset):
    """Rows of `schema.DEMONSTRATION_COLUMNS` as verl's SFT trainer reads them; the loss is on the completion only.

    A conversation that is too long is shortened. A judge's prompt cannot be: its row is left out.
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
            self.table = self._short_enough(files)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, item: int) -> dict[str, torch.Tensor]:
        row = read_row(self.table, item)
        completion_ids = encode(self.tokenizer, self._completion_text(row))
        room = self.max_length - len(completion_ids)
        if room <= 0:
            raise UserError(
                f"{row['sample_id']}: the completion alone has {len(completion_ids)} tokens, data.max_length is "
                f"{self.max_length}: raise MAX_LENGTH"
            )
        prompt_ids = self._encode_prompt(without_control_tokens(row["prompt"], self.tokenizer))
        if len(prompt_ids) > room:
            shortened = fit_prompt(self.tokenizer, row["prompt"], room, **self.template_kwargs)
            prompt_ids = self._encode_prompt(shortened)
        input_ids = torch.tensor(prompt_ids + completion_ids)
        loss_mask = torch.zeros_like(input_ids)
        loss_mask[len(prompt_ids) :] = 1
        return {"input_ids": input_ids, "position_ids": torch.arange(len(input_ids)), "loss_mask": loss_mask}

    def _encode_prompt(self, messages: list[Message]) -> list[int]:
        return encode(self.tokenizer, render_prompt(self.tokenizer, messages, **self.template_kwargs))

    def _short_enough(self, files: list[str]) -> pa.Table:
        def whole(row: dict[str, Any]) -> str:
            prompt = without_control_tokens(row["prompt"], self.tokenizer)
            start = render_prompt(self.tokenizer, prompt, **self.template_kwargs)
            return start + self._completion_text(row)

        keep = [fits(self.tokenizer, whole(row), self.max_length) for row in iter_rows(self.table)]
        if not any(keep):
            raise UserError(
                f"{', '.join(files)}: every demonstration has more than {self.max_length} tokens: raise MAX_LENGTH"
            )
        if not all(keep):
            print(f"{keep.count(False)} of {len(keep)} demonstrations over MAX_LENGTH={self.max_length} left out")
        return self.table.filter(pa.array(keep))

    def _completion_text(self, row: dict[str, Any]) -> str:
        """What the template puts after the generation prompt, up to and including the end-of-turn token."""
        prompt = without_control_tokens(row["prompt"], self.tokenizer)
        completion = without_control_tokens(row["completion"], self.tokenizer)
        rendered = self.tokenizer.apply_chat_template(prompt + completion, tokenize=False, **self.template_kwargs)
        start = render_prompt(self.tokenizer, prompt, **self.template_kwargs)
        content = completion[0]["content"].strip()  # Llama's template strips it
        written = answer_after(start, rendered)
        if written is None or content not in written:
            raise UserError(
                f"{row['sample_id']}: the chat template does not continue its own generation prompt; pass a "
                "custom_chat_template"
            )
        return written.rstrip()
