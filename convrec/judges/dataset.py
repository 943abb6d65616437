"""The judges' parquet as verl's RL dataset: each row is a chat prompt and its label (`data.custom_cls`).

A prompt that is too long is dropped: cutting a query or a response would change the question.
"""

from typing import Any, ClassVar

import numpy as np
from verl.utils.dataset.rl_dataset import RLHFDataset

from convrec.base.errors import UserError
from convrec.data.chat import Message, fits, render_prompt, split_control_tokens
from convrec.judges.criteria import Criteria
from convrec.judges.orders import SEPARATE, pair_swapped_rows
from convrec.judges.schema import build_prompt, get_label, get_score_range, read_judge_table
from convrec.judges.verdict import opens_thinking
from convrec.runs.folder import listed
from convrec.training.dataset import make_rl_item


class JudgeDataset(RLHFDataset):
    """Rows of `judge_schema` in the form of verl's rollout and reward.

    Attributes:
        mode: pointwise or pairwise.
        label: the key of the ground truth.
        criteria: the criteria of all rows.
        are_pairs: whether rows 2k and 2k + 1 are the two orders of one pair (convrec.orders, training data).
        in_thinking: whether the chat template opens the thinking in the prompt.
    """

    mode: ClassVar[str]
    label: ClassVar[str]
    criteria: Criteria
    are_pairs: bool
    in_thinking: bool

    def _read_files_and_tokenize(self) -> None:
        rows = [row for path in self.data_files for row in read_judge_table(path, self.mode)]
        self.criteria = rows[0]["criteria"]
        if any(row["criteria"] != self.criteria for row in rows):
            raise UserError(
                "judges.mixed-criteria",
                f"{', '.join(self.data_files)}: the files have different criteria. Train on files with the same ones.",
            )
        is_train = self.data_files == listed(self.config.get("train_files"))
        self.are_pairs = is_train and self.config.get("orders", SEPARATE) != SEPARATE
        units = [[row] for row in rows]  # rows that are sampled or dropped together
        if self.are_pairs:
            pairs = pair_swapped_rows(rows, ", ".join(self.data_files))
            units = [[rows[first], rows[second]] for first, second in pairs]
        if 0 < self.max_samples < len(rows):
            count = max(1, self.max_samples // len(units[0]))
            chosen = np.random.default_rng(self.seed).choice(len(units), size=count, replace=False)
            units = [units[index] for index in np.sort(chosen)]
        self.dataframe = [row for unit in units if all(map(self._is_short_enough, unit)) for row in unit]
        if not self.dataframe:
            raise UserError(
                "judges.prompts-too-long",
                f"{', '.join(self.data_files)}: every prompt has more than MAX_PROMPT_LENGTH="
                f"{self.max_prompt_length} tokens. Raise it.",
            )
        self.in_thinking = opens_thinking(self._render(self.dataframe[0]))
        num_rows = sum(map(len, units))
        if len(self.dataframe) < num_rows:
            num_dropped = num_rows - len(self.dataframe)
            print(f"dropped {num_dropped} of {num_rows} prompts over MAX_PROMPT_LENGTH={self.max_prompt_length}")

    def _is_short_enough(self, row: dict[str, Any]) -> bool:
        return fits(self.tokenizer, self._render(row), self.max_prompt_length)

    def _build_prompt(self, row: dict[str, Any]) -> list[Message]:
        return split_control_tokens(build_prompt(row, self.mode), self.tokenizer)

    def _render(self, row: dict[str, Any]) -> str:
        return render_prompt(self.tokenizer, self._build_prompt(row), **self.apply_chat_template_kwargs)

    def __getitem__(self, item: int) -> dict[str, Any]:
        row = self.dataframe[item]
        extra = {"scores": list(get_score_range(row)), "in_thinking": self.in_thinking}
        if self.are_pairs:
            extra["pair"] = item // 2  # for the trainer: the same for both orders of a pair
        truth = {self.label: get_label(row, self.mode)}
        source = row["source"] or "judge"
        return make_rl_item(item, self._build_prompt(row), source=source, truth=truth, extra_info=extra)


class PointwiseDataset(JudgeDataset):
    """Rows with one response and a score as the label."""

    mode = "pointwise"
    label = "helpfulness"


class PairwiseDataset(JudgeDataset):
    """Rows with two responses and A or B as the label."""

    mode = "pairwise"
    label = "preference"
