"""The credit of a step's lists, computed by hand, and the hooks of features."""

from typing import Any

import pytest
import torch

from convrec.lists.token_ranks import table_from_bytes
from convrec.rank_grpo.credit import (
    NOT_REPORTED,
    NOT_SAMPLED,
    Credit,
    CreditSettings,
    RankBatch,
    assign_credit,
    collect_scalar_infos,
    compute_list_metrics,
    has_log_prob,
    is_sampled,
)

EOS, LINE = 0, 1
TABLE = table_from_bytes([b"", b"\n", b" a", b" b", b" c"])
# Two rollouts of one prompt, and a padding row: "a \n b", "b \n c c" cut off, "a"
RESPONSES = torch.tensor([[2, LINE, 3, EOS, 0], [3, LINE, 4, 4, 0], [2, EOS, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [0, 0, 0, 0, 0]])
RETURNS = [[1.0, 0.0], [0.0, 0.0], [5.0, 5.0]]
HALF = 0.5 / (0.5**0.5 + 1e-4)  # returns 1 and 0: mean .5, standard deviation .7071


def make_batch(responses: torch.Tensor = RESPONSES, mask: torch.Tensor = MASK) -> RankBatch:
    infos = [{"rank_returns": row, "hits": sum(row), "texts": ["x"]} for row in RETURNS]
    return RankBatch(
        prompts=["p", "p", 2],
        is_padding_B=torch.tensor([False, False, True]),
        extra_fields=[{"reward_extra_info": info} for info in infos],
        responses_BT=responses,
        mask_BT=mask,
    )


def settings(**changes: Any) -> CreditSettings:
    return CreditSettings(num_ranks=2, vocab_table=TABLE, stop_token_ids=[EOS], **changes)


def test_tokens_get_the_advantage_of_their_rank() -> None:
    credit = assign_credit(make_batch(), settings())
    assert credit.rank_ids_BT[:2].tolist() == [[0, 0, 1, 1, -1], [0, 0, 1, 1, -1]]
    assert credit.units_BT[:2].tolist() == [[0, 0, 1, 1, -1], [0, 0, 1, 1, -1]]
    assert credit.advantages_BT[0].tolist() == pytest.approx([HALF, HALF, 0, 0, 0])
    assert credit.advantages_BT[1].tolist() == pytest.approx([-HALF, -HALF, 0, 0, 0])
    assert credit.metrics == {"rank_grpo/truncated": 0.5}  # padding is not counted


def test_a_padding_row_changes_nothing_and_has_no_unit() -> None:
    batch = make_batch()
    alone = RankBatch(batch.prompts[:2], batch.is_padding_B[:2], batch.extra_fields[:2], RESPONSES[:2], MASK[:2])
    credit = assign_credit(batch, settings())
    assert torch.equal(credit.advantages_BT[:2], assign_credit(alone, settings()).advantages_BT)
    assert (credit.units_BT[2] == -1).all()


def test_a_truncated_list_is_masked_on_request() -> None:
    credit = assign_credit(make_batch(), settings(mask_truncated=True))
    assert credit.loss_mask_BT.tolist() == [MASK[0].tolist(), [0] * 5, [0] * 5]
    assert (credit.units_BT[1] == -1).all()


def test_without_normalisation_advantages_are_differences_to_the_mean() -> None:
    credit = assign_credit(make_batch(), settings(norm_by_std=False))
    assert credit.advantages_BT[:2, 0].tolist() == [0.5, -0.5]


# "a" and nothing else, and "a \n b \n c" cut off
LENGTHS = torch.tensor([[2, EOS, 0, 0, 0], [2, LINE, 3, LINE, 4], [2, EOS, 0, 0, 0]])
LENGTHS_MASK = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])


def test_lists_of_another_length_get_the_penalties() -> None:
    batch = make_batch(LENGTHS, LENGTHS_MASK)
    credit = assign_credit(batch, settings(underflow_penalty=-0.2, overflow_penalty=-0.3))
    assert credit.advantages_BT[0].tolist() == pytest.approx([HALF, -0.2, 0, 0, 0])
    assert credit.advantages_BT[1].tolist() == pytest.approx([-HALF, -HALF, 0, 0, -0.3])


def test_the_reference_counts_delimiters_and_rewards_the_end_of_a_full_list() -> None:
    # "a \n b" and "\n b", which has two items for the reference
    responses = torch.tensor([[2, LINE, 3, EOS], [LINE, 3, EOS, 0], [2, EOS, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]])
    credit = assign_credit(make_batch(responses, mask), settings(preset="reference"))
    assert credit.rank_ids_BT[:2].tolist() == [[0, 0, 1, 1], [0, 1, 1, -1]]
    assert credit.advantages_BT[0].tolist() == pytest.approx([HALF, HALF, 0, 0.1])
    assert credit.advantages_BT[1].tolist() == pytest.approx([-HALF, 0, 0.1, 0])
    papers = assign_credit(make_batch(responses, mask), settings())
    assert papers.rank_ids_BT[:2].tolist() == [[0, 0, 1, 1], [-1, 0, 0, -1]]


def test_returns_of_tokens_are_those_of_their_rank() -> None:
    credit = assign_credit(make_batch(LENGTHS, LENGTHS_MASK), settings())
    returns_BK = torch.tensor([[1.0, 0.0], [0.25, 0.5], [0.0, 0.0]])
    assert credit.spread_returns(returns_BK)[:2].tolist() == [[1.0, 1.0, 0, 0, 0], [0.25, 0.25, 0.5, 0.5, 0.0]]


def test_lists_are_logged_as_the_policy_wrote_them() -> None:
    batch = make_batch()
    batch.logged_infos[0] = {"rank_returns": [0.0, 0.0], "hits": 0}
    metrics = compute_list_metrics(batch, 2)
    assert metrics["rank_grpo/return@1"] == 0.0
    assert metrics["rank_grpo/no_hit"] == 1.0
    assert compute_list_metrics(make_batch(), 2)["rank_grpo/return@1"] == 0.5


def test_a_prompt_is_hit_in_any_of_its_groups() -> None:
    batch = make_batch()
    batch.groups = ["p, turn 0", "p, turn 1", 2]
    metrics = compute_list_metrics(batch, 2)
    assert metrics["rank_grpo/no_hit"] == 0.0
    assert metrics["rank_grpo/zero_std/all_ranks"] == 1.0  # a group has one response


class Noting:
    """A feature that records its calls and the data that they get."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    def prepare(self, batch: RankBatch) -> None: ...

    def adjust_ranks(self, batch: RankBatch, credit: Credit) -> None:
        self.seen.append(("ranks", bool((credit.units_BT >= 0).any())))
        credit.advantages_BK = credit.advantages_BK * 2

    def adjust_tokens(self, batch: RankBatch, credit: Credit) -> None:
        self.seen.append(("tokens", bool((credit.units_BT >= 0).any())))
        credit.loss_mask_BT = credit.loss_mask_BT * 0

    def log_credit(self, batch: RankBatch, credit: Credit) -> None:
        self.seen.append(("log", bool(credit.loss_mask_BT.any())))


def test_a_feature_changes_ranks_then_tokens_then_logs() -> None:
    feature = Noting()
    credit = assign_credit(make_batch(), settings(), [feature])
    assert feature.seen == [("ranks", False), ("tokens", True), ("log", False)]
    assert credit.advantages_BT[0, 0].item() == pytest.approx(2 * HALF)


def test_placeholders_of_log_probs_tell_what_the_rollout_sampled() -> None:
    log_probs = torch.tensor([-0.5, 0.0, NOT_SAMPLED, NOT_REPORTED])
    assert is_sampled(log_probs).tolist() == [True, True, False, True]
    assert has_log_prob(log_probs).tolist() == [True, True, False, False]


def test_only_numbers_of_infos_are_logged() -> None:
    assert collect_scalar_infos([{"hits": 1, "list": [1]}]) == {"hits": [1.0]}
    assert collect_scalar_infos([{"hits": 1, "list": [1], "ndcg": 0.5}, {"hits": 0, "list": [0], "ndcg": 0.0}]) == {
        "hits": [1.0, 0.0],
        "ndcg": [0.5, 0.0],
    }
