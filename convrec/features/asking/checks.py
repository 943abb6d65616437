"""What a run that may ask needs, before it starts."""

from omegaconf import DictConfig

from convrec.errors import UserError
from convrec.features.asking.attributes import load_attributes
from convrec.rank_grpo import NAME


def check(config: DictConfig) -> None:
    """Check that questions can be sampled and credited: a question is a row of the batch and a unit of the loss.

    Raises:
        UserError: an attribute is not in the catalog, or another setting excludes questions.
    """
    settings = config.convrec
    actor = config.actor_rollout_ref.actor
    rollout = config.actor_rollout_ref.rollout
    load_attributes(settings.catalog_file, list(settings.ask), "ASK")
    if settings.max_turns < 2:
        _refuse(f"MAX_TURNS={settings.max_turns}: the one turn is the list; take 2 or more, or leave out ASK")
    if config.algorithm.adv_estimator != NAME or settings.preset != "paper":
        _refuse("a question is credited as a rank is; take ALGORITHM=rank_grpo and PRESET=paper")
    if settings.repair != "none":
        _refuse(f"REPAIR={settings.repair}: lists after answers are not repaired; take one of them")
    if config.algorithm.filter_groups.enable:
        _refuse("algorithm.filter_groups leaves out what a question costs")
    is_single_turn = rollout.agent.default_agent_loop == "single_turn_agent" and not rollout.full_determinism
    if not is_single_turn or config.trainer.v1.trainer_mode != NAME or rollout.name != "vllm":
        _refuse("turns are vLLM's, of single_turn_agent in groups: trainer_mode=rank_grpo, no full_determinism")
    if not actor.use_dynamic_bsz or actor.ppo_mini_batch_size != config.data.train_batch_size:
        _refuse("a batch is longer by its questions; ppo_mini_batch_size and use_dynamic_bsz stay as they are")


def _refuse(problem: str) -> None:
    raise UserError(f"convrec.ask (ASK): {problem}")
