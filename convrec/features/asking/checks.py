"""Checks before a run in which the model may ask questions."""

from convrec.base.errors import UserError
from convrec.features.asking.attributes import load_attributes
from convrec.rank_grpo import NAME
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run

SETTING = "convrec.ask (ASK)"


def check(run: Run[RankGRPOConfig]) -> None:
    """Check that questions can be sampled and credited: a question is a row of the batch and a unit of the loss.

    Raises:
        UserError: an attribute is not in the catalog, or another setting rules out questions.
    """
    settings = run.settings
    load_attributes(settings.catalog_file, settings.ask or [], "ASK")
    if settings.max_turns < 2:
        raise UserError(
            "questions.too-few-turns",
            f"{SETTING}: MAX_TURNS={settings.max_turns}: the only turn is the list. Set 2 or more, or unset ASK.",
        )
    if not run.is_rank_level or settings.preset != "paper":
        raise UserError(
            "questions.algorithm",
            f"{SETTING}: questions get credit at rank level. Set ALGORITHM=rank_grpo and PRESET=paper.",
        )
    if settings.repair != "none":
        raise UserError(
            "questions.repair",
            f"{SETTING}: REPAIR={settings.repair}: repair cannot change lists that follow an answer. Unset one of "
            "the two.",
        )
    if run.group_filter:
        raise UserError(
            "questions.group-filter",
            f"{SETTING}: algorithm.filter_groups ignores the cost of questions. Turn it off.",
        )
    samples_in_groups = run.samples_single_turns and not run.is_fully_deterministic
    if not samples_in_groups or run.trainer_mode != NAME or run.rollout_engine != "vllm":
        raise UserError(
            "questions.sampler",
            f"{SETTING}: turns need vLLM, single_turn_agent and trainer.v1.trainer_mode={NAME}, without "
            "full_determinism.",
        )
    if not run.packs_micro_batches or run.mini_batch_size != run.train_batch_size:
        raise UserError(
            "questions.batch-size",
            f"{SETTING}: questions add rows to a batch. Keep ppo_mini_batch_size and use_dynamic_bsz at their "
            "defaults.",
        )
