"""Settings of the recipes that train judges, with verl's own GRPO and one reward per response."""

from dataclasses import dataclass
from typing import Annotated

from convrec.base.fields import Setting
from convrec.base.kinds import NonPositiveNumber
from convrec.settings.choices import Orders
from convrec.settings.training import (
    GPUMemoryUtilization,
    MaxPromptLength,
    MaxResponseLength,
    Model,
    NumGenerations,
    RLConfig,
    SaveFreq,
    TensorParallel,
    TestFreq,
    TotalEpochs,
    TrainBatchSize,
    TrainFile,
    ValFile,
)


@dataclass(frozen=True, kw_only=True)
class JudgeConfig(RLConfig):
    """Settings of both recipes."""

    model: Model = "Qwen/Qwen3-8B"
    # RewardBench-2 has 62 steps per epoch (pointwise)
    save_freq: SaveFreq = 20
    test_freq: TestFreq = 10
    train_batch_size: TrainBatchSize = 96  # 96 x 4 = 384 responses per step
    max_prompt_length: MaxPromptLength = 4096
    max_response_length: MaxResponseLength = 2048  # the thought and the verdict
    num_generations: NumGenerations = 4
    # conf/judge.yaml: one replica over the GPUs of a node
    tensor_parallel: TensorParallel = None
    gpu_memory_utilization: GPUMemoryUtilization = 0.6
    # With -1 a group of malformed and wrong answers still learns the format.
    malformed_reward: Annotated[
        NonPositiveNumber,
        Setting("reward of an answer without a verdict; -1 is below the reward of a wrong verdict"),
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class PointwiseJudgeConfig(JudgeConfig):
    """Settings of the recipe `judge_pointwise`."""

    train_file: TrainFile = "data/judge/pointwise/train.parquet"
    val_file: ValFile = "data/judge/pointwise/validation.parquet"
    total_epochs: TotalEpochs = 1


@dataclass(frozen=True, kw_only=True)
class PairwiseJudgeConfig(JudgeConfig):
    """Settings of the recipe `judge_pairwise`."""

    train_file: TrainFile = "data/judge/pairwise/train.parquet"
    val_file: ValFile = "data/judge/pairwise/validation.parquet"
    test_freq: TestFreq = 4
    total_epochs: TotalEpochs = 30
    # separate: each order of a pair is a separate prompt. The other two need both orders in the data (convrec data
    # judge --both-orders), and keep them in one batch. consistent: an answer earns 1 only if its partner in the other
    # order is right too (J1, arXiv 2505.10320). together: the answers to both orders are one group (EIS-GRPO,
    # arXiv 2505.13346).
    orders: Annotated[
        Orders,
        Setting("way in which the two orders of a pair are combined: docs/how-to/judges.md"),
    ] = "separate"
