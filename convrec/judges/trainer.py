"""The trainer of judges by the name that conf/ gives verl (`trainer.v1.trainer_mode`)."""

from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from convrec.judges.method import JudgeMethod
from convrec.training.trainer import TrainingEngine

JUDGE = "judge_grpo"


@register_trainer(JUDGE)
class JudgeTrainer(TrainingEngine, PPOTrainerSync):
    """Rollout and training share their devices and take turns: verl's "sync" mode."""

    method_class = JudgeMethod
