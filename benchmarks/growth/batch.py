"""Growth of a step's credit and loss with the lists of a batch, and with their ranks."""

from pathlib import Path

from benchmarks.growth.harness import NUM_ITEMS, SEED, Figures, Quantity, measure_seconds

FEW_LISTS = 16
TOKENS_PER_RANK = 12


def measure_lists(size: int, files: Path, repeats: int) -> Figures:
    return measure_batch(num_lists=size, num_ranks=NUM_ITEMS, repeats=repeats)


def measure_ranks(size: int, files: Path, repeats: int) -> Figures:
    return measure_batch(num_lists=FEW_LISTS, num_ranks=size, repeats=repeats)


def measure_batch(num_lists: int, num_ranks: int, repeats: int) -> Figures:
    """Return the milliseconds of a batch's credit, and of its loss with the gradient."""
    import torch

    from benchmarks.bench_loss import EOS, KL, make_batch
    from convrec.rank_grpo.credit import CreditSettings, RankBatch, assign_credit
    from convrec.rank_grpo.policy_loss import BatchCounts, RankLossSettings, compute_rank_policy_loss

    responses_BT, mask_BT, table = make_batch("cpu", num_lists, num_ranks, TOKENS_PER_RANK * num_ranks)
    generator = torch.Generator().manual_seed(SEED)
    returns_BK = torch.rand(num_lists, num_ranks, generator=generator)
    infos = [{"reward_extra_info": {"rank_returns": returns}} for returns in returns_BK.tolist()]
    prompts = [number // 8 for number in range(num_lists)]
    batch = RankBatch(prompts, torch.zeros(num_lists, dtype=torch.bool), infos, responses_BT, mask_BT)
    settings = CreditSettings(num_ranks, table, EOS)
    credit = assign_credit(batch, settings)
    old_BT = -2 * torch.rand(responses_BT.shape, generator=generator)
    new_BT = (old_BT + 0.05 * torch.randn(responses_BT.shape, generator=generator)).requires_grad_()

    def compute_loss() -> None:
        new_BT.grad = None
        loss, _ = compute_rank_policy_loss(
            new_BT,
            credit.advantages_BT,
            credit.units_BT,
            RankLossSettings(num_ranks, kl_coef=KL),
            BatchCounts(num_lists),
            old_log_prob_BT=old_BT,
            ref_log_prob_BT=old_BT,
        )
        loss.backward()

    compute_loss()  # the first call is slower
    return {
        "credit_ms": 1e3 * measure_seconds(lambda: assign_credit(batch, settings), 3 * repeats),
        "loss_ms": 1e3 * measure_seconds(compute_loss, 3 * repeats),
    }


LOSS = ("benchmarks.bench_loss",)
QUANTITIES = {
    "lists": Quantity("lists of a batch", measure_lists, LOSS, smallest=10, largest=1000),
    "ranks": Quantity("ranks of a list", measure_ranks, LOSS, smallest=10, largest=1000),
}
