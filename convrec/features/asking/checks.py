"""What a run that may ask needs, before it starts."""

from convrec.base.errors import UserError
from convrec.features.asking.attributes import load_attributes
from convrec.rank_grpo import NAME
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import Run


def check(run: Run[RankGRPOConfig]) -> None:
    """Check that questions can be sampled and credited: a question is a row of the batch and a unit of the loss.

    Raises:
        UserError: an attribute is not in the catalog, or another setting excludes questions.
    """
    settings = run.settings
    load_attributes(settings.catalog_file, settings.ask or [], "ASK")
    if settings.max_turns < 2:
        _refuse(f"MAX_TURNS={settings.max_turns}: the one turn is the list; take 2 or more, or leave out ASK")
    if not run.is_rank_level or settings.preset != "paper":
        _refuse("a question is credited as a rank is; take ALGORITHM=rank_grpo and PRESET=paper")
    if settings.repair != "none":
        _refuse(f"REPAIR={settings.repair}: lists after answers are not repaired; take one of them")
    if run.group_filter:
        _refuse("algorithm.filter_groups leaves out what a question costs")
    samples_in_groups = run.samples_single_turns and not run.is_fully_deterministic
    if not samples_in_groups or run.trainer_mode != NAME or run.rollout_engine != "vllm":
        _refuse("turns are vLLM's, of single_turn_agent in groups: trainer_mode=rank_grpo, no full_determinism")
    if not run.packs_micro_batches or run.mini_batch_size != run.train_batch_size:
        _refuse("a batch is longer by its questions; ppo_mini_batch_size and use_dynamic_bsz stay as they are")


def _refuse(problem: str) -> None:
    raise UserError(f"convrec.ask (ASK): {problem}")
