"""A question before the list, in training (docs/explanation/method.md 10)."""

import torch

from convrec.features.asking import checks
from convrec.features.asking.maths import Turns, assign_questions, question_advantages
from convrec.features.asking.rollout import Dialogues
from convrec.features.feature import Feature, RolloutContext
from convrec.features.responses import TURN
from convrec.rank_grpo.credit import Credit, RankBatch
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.titles.catalog import Catalog


class Asking(Feature):
    """`convrec.ask`: in each turn the model asks about an attribute of the catalog, or gives its list."""

    # Each question is a row, so a batch has no fixed number of rows.
    has_variable_batch = True
    # The user's answer depends on the relevant items of the validation row.
    answers_each_row = True

    @classmethod
    def is_on(cls, settings: RankGRPOConfig) -> bool:
        return bool(settings.ask)

    def check(self, catalog: Catalog) -> list[str]:
        checks.check(self.run)
        return []

    def start_rollout(self, worker: RolloutContext) -> Dialogues:
        return Dialogues(self.run, worker.tokenizer)

    def prepare(self, batch: RankBatch) -> None:
        """Group the lists of a prompt by turn; log lists only."""
        turns = read_turns(batch)
        batch.groups = list(turns.list_groups)
        batch.is_list_B = batch.is_list_B & ~turns.is_question_B

    def adjust_tokens(self, batch: RankBatch, credit: Credit) -> None:
        """Assign a unit and an advantage to the tokens of a question."""
        turns = read_turns(batch)
        advantages_B = question_advantages(turns, self.settings.ask_cost, self.run.normalizes_by_std)
        credit.units_BT, credit.advantages_BT = assign_questions(
            credit.units_BT, credit.advantages_BT, batch.mask_BT.bool(), turns, advantages_B
        )
        credit.metrics["rank_grpo/questions"] = turns.turn_B[batch.list_rows].float().mean().item()


def read_turns(batch: RankBatch) -> Turns:
    """Return the turns of a batch's rows, which the rollout recorded under TURN."""
    notes = [extra[TURN] for extra in batch.extra_fields]
    gains = [info["score"] for info in batch.infos]
    return Turns(
        uid=batch.prompts,
        turn_B=torch.tensor([note["turn"] for note in notes]),
        is_question_B=torch.tensor([note["question"] for note in notes]),
        gain_B=torch.tensor(gains, dtype=torch.float32),
        asked_B=torch.tensor([note["asked"] for note in notes]),
    )
