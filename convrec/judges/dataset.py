"""The judges' parquet as verl's RL dataset: a row -> one chat prompt and its label (`data.custom_cls`).

A prompt that is too long is left out: nothing of a query or a response can be cut without changing the question.
"""

from typing import Any, ClassVar

import numpy as np
from verl.utils.dataset.rl_dataset import RLHFDataset

from convrec.base.errors import UserError
from convrec.data.chat import Message, fits, render_prompt, without_control_tokens
from convrec.judges.criteria import Criteria
from convrec.judges.orders import SEPARATE, pair_swapped_rows
from convrec.judges.schema import build_prompt, get_label, get_score_range, read_judge_table
from convrec.judges.verdict import opens_thinking
from convrec.runs.folder import listed
from convrec.training.dataset import rl_item


class JudgeDataset(RLHFDataset):
    """Rows of `judge_schema` as verl's rollout and reward read them."""

    mode: ClassVar[str]
    label: ClassVar[str]
    criteria: Criteria
    are_pairs: bool  # rows 2k and 2k + 1 are the two orders of one pair (convrec.orders, training data)
    in_thinking: bool  # whether the chat template opens the thinking in the prompt

    def _read_files_and_tokenize(self) -> None:
        rows = [row for path in self.data_files for row in read_judge_table(path, self.mode)]
        self.criteria = rows[0]["criteria"]
        if any(row["criteria"] != self.criteria for row in rows):
            raise UserError(f"{', '.join(self.data_files)}: labelled by different criteria; train on one of them")
        is_train = self.data_files == listed(self.config.get("train_files"))
        self.are_pairs = is_train and self.config.get("orders", SEPARATE) != SEPARATE
        units = [[row] for row in rows]  # what is there or not together
        if self.are_pairs:
            units = [[rows[one], rows[other]] for one, other in pair_swapped_rows(rows, ", ".join(self.data_files))]
        if 0 < self.max_samples < len(rows):
            count = max(1, self.max_samples // len(units[0]))
            chosen = np.random.default_rng(self.seed).choice(len(units), size=count, replace=False)
            units = [units[index] for index in np.sort(chosen)]
        self.dataframe = [row for unit in units if all(map(self._is_short_enough, unit)) for row in unit]
        if not self.dataframe:
            raise UserError(
                f"{', '.join(self.data_files)}: every prompt has more than {self.max_prompt_length} tokens: raise "
                "MAX_PROMPT_LENGTH"
            )
        self.in_thinking = opens_thinking(self._rendered(self.dataframe[0]))
        asked_for = sum(map(len, units))
        if len(self.dataframe) < asked_for:
            dropped = asked_for - len(self.dataframe)
            print(f"{dropped} of {asked_for} prompts over MAX_PROMPT_LENGTH={self.max_prompt_length} left out")

    def _is_short_enough(self, row: dict[str, Any]) -> bool:
        return fits(self.tokenizer, self._rendered(row), self.max_prompt_length)

    def _prompt(self, row: dict[str, Any]) -> list[Message]:
        return without_control_tokens(build_prompt(row, self.mode), self.tokenizer)

    def _rendered(self, row: dict[str, Any]) -> str:
        return render_prompt(self.tokenizer, self._prompt(row), **self.apply_chat_template_kwargs)

    def __getitem__(self, item: int) -> dict[str, Any]:
        row = self.dataframe[item]
        extra = {"scores": list(get_score_range(row)), "in_thinking": self.in_thinking}
        if self.are_pairs:
            extra["pair"] = item // 2  # for the trainer: the same for both orders of one
        truth = {self.label: get_label(row, self.mode)}
        source = row["source"] or "judge"
        return rl_item(item, self._prompt(row), source=source, truth=truth, extra_info=extra)


class PointwiseDataset(JudgeDataset):
    """One response a row, its label a score 0-4."""

    mode = "pointwise"
    label = "helpfulness"


class PairwiseDataset(JudgeDataset):
    """Two responses a row, its label A or B."""

    mode = "pairwise"
    label = "preference"
