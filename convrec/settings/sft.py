"""Settings of SFT, the warm start. Defaults are the paper's full scale."""

from dataclasses import dataclass
from typing import Annotated

from convrec.base.fields import Key, Setting
from convrec.base.kinds import NonNegativeNumber, PositiveInteger
from convrec.settings.training import (
    BATCH_ALSO,
    BATCH_HELP,
    BATCH_KEY,
    BATCH_VARIABLE,
    QWEN,
    Candidates,
    LearningRate,
    MaxTokensPerGPU,
    Model,
    SaveFreq,
    SaveKeep,
    Seed,
    TestFreq,
    TotalEpochs,
    TrainFile,
    TrainingConfig,
    ValFile,
)

SEQUENCES_PER_DEVICE = 96  # the paper's 12 x 8 accumulation steps


@dataclass(frozen=True, kw_only=True)
class SFTConfig(TrainingConfig):
    """Settings of the recipe `sft`."""

    model: Annotated[Model, Key("model.path")] = QWEN
    train_file: TrainFile = "data/reddit_v2/sft_train.parquet"
    val_file: ValFile = "data/reddit_v2/sft_validation.parquet"
    seed: Annotated[Seed, Key(("data.seed", "trainer.seed"))] = 3407
    # the paper compares checkpoints every 100 steps and continues from step 1500
    save_freq: SaveFreq = 100
    test_freq: TestFreq = 100
    total_epochs: TotalEpochs = 10
    save_keep: Annotated[SaveKeep, Key("trainer.max_ckpt_to_keep")] = None
    train_batch_size: Annotated[
        PositiveInteger | None,
        Setting(
            BATCH_HELP,
            key=BATCH_KEY,
            variable=BATCH_VARIABLE,
            also=BATCH_ALSO,
            null=f"{SEQUENCES_PER_DEVICE} per device",
        ),
    ] = None
    max_length: Annotated[
        PositiveInteger,
        Setting(
            "maximum length of prompt and completion, in tokens (SFT)",
            key="data.max_length",
            variable="MAX_LENGTH",
            also=("MAX_SEQ_LENGTH", "MAX_SEQ_LEN"),
        ),
    ] = 1024
    # 12 sequences of 1,024, packed without padding
    max_tokens_per_gpu: Annotated[MaxTokensPerGPU, Key("data.max_token_len_per_gpu")] = 12288
    learning_rate: Annotated[LearningRate, Key("optim.lr")] = 5e-5
    candidates: Candidates = 0
    lr_warmup_ratio: Annotated[
        NonNegativeNumber,
        Setting("share of the steps in which the learning rate rises", key="optim.lr_warmup_steps_ratio"),
    ] = 0.05
