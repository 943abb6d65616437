"""verl's SFT trainer, fixed where epochs begin and end and where a run is resumed: nothing but wiring."""

from typing import Any

from verl.trainer import sft_trainer

from convrec.training.worker import report_new_rate, set_learning_rate


class ConvRecSFTTrainer(sft_trainer.SFTTrainer):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if self.resume_global_step % self.steps_per_epoch == 0:
            # a loader's state saved after an epoch's last batch comes back exhausted, and `fit` would count that as the
            # next epoch; without a state the loader begins the epoch that `fit` gives the sampler
            self.train_dataloader.next_iter_state = None
        rates = set_learning_rate(self.engine)
        if self.rank == 0:
            report_new_rate(self.resume_global_step, *rates)

    def _build_dataloader(self) -> None:
        super()._build_dataloader()
        self.train_sampler.seed = self.config.data.seed  # verl leaves it at 0, whatever SEED is

    def _init_engine(self) -> None:
        """TOTAL_STEPS wins over epochs: verl would end at whichever comes first, without the last checkpoint."""
        super()._init_engine()
        epochs = -(-self.total_training_steps // self.steps_per_epoch)
        self.config.trainer.total_epochs = max(self.config.trainer.total_epochs, epochs)
