"""The judges' parquet as verl's RL dataset: a row -> one chat prompt and its label (`data.custom_cls`).

A prompt that is too long is left out: nothing of a query or a response can be cut without changing the question.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from verl.utils.dataset.rl_dataset import RLHFDataset

from convrec.data.chat import fits, render_prompt
from convrec.errors import UserError
from convrec.judges.schema import label_of, prompt_of, read_judge_table


class JudgeDataset(RLHFDataset):
    """Rows of `judge_schema` as verl's rollout and reward read them."""

    mode: ClassVar[str]
    label: ClassVar[str]

    def _read_files_and_tokenize(self) -> None:
        rows = [row for path in self.data_files for row in read_judge_table(path, self.mode)]
        if 0 < self.max_samples < len(rows):
            chosen = np.random.default_rng(self.seed).choice(len(rows), size=self.max_samples, replace=False)
            rows = [rows[place] for place in np.sort(chosen)]
        self.dataframe = [row for row in rows if self._is_short_enough(row)]
        if not self.dataframe:
            raise UserError(
                f"{', '.join(self.data_files)}: every prompt has more than {self.max_prompt_length} tokens: raise "
                "MAX_PROMPT_LENGTH"
            )
        if len(self.dataframe) < len(rows):
            dropped = len(rows) - len(self.dataframe)
            print(f"{dropped} of {len(rows)} prompts over MAX_PROMPT_LENGTH={self.max_prompt_length} left out")

    def _is_short_enough(self, row: dict[str, Any]) -> bool:
        rendered = render_prompt(self.tokenizer, prompt_of(row, self.mode), **self.apply_chat_template_kwargs)
        return fits(self.tokenizer, rendered, self.max_prompt_length)

    def __getitem__(self, item: int) -> dict[str, Any]:
        row = self.dataframe[item]
        return {
            "raw_prompt": prompt_of(row, self.mode),
            "data_source": row["source"] or "judge",
            "reward_model": {"style": "rule", "ground_truth": {self.label: label_of(row, self.mode)}},
            "extra_info": {"index": item},
            "index": item,
            "tools_kwargs": {},
            "interaction_kwargs": {},
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),  # verl's collate wants one tensor
        }


class PointwiseDataset(JudgeDataset):
    """One response a row, its label a score 0-4."""

    mode, label = "pointwise", "helpfulness"


class PairwiseDataset(JudgeDataset):
    """Two responses a row, its label A or B."""

    mode, label = "pairwise", "preference"
