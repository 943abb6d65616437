"""The trainer of judges, registered with verl under the name in conf/ (`trainer.v1.trainer_mode`)."""

from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from convrec.judges.method import JudgeMethod
from convrec.training.trainer import TrainingEngine

JUDGE = "judge_grpo"


@register_trainer(JUDGE)
class JudgeTrainer(TrainingEngine, PPOTrainerSync):
    """Trains judges in verl's "sync" mode: rollout and training alternate on the same devices."""

    method_class = JudgeMethod
