"""Settings of the recipes that train judges, by verl's own GRPO with one reward a response."""

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
    # RewardBench-2 has 62 steps (pointwise, an epoch)
    save_freq: SaveFreq = 20
    test_freq: TestFreq = 10
    train_batch_size: TrainBatchSize = 96  # 96 x 4 = 384 responses a step
    max_prompt_length: MaxPromptLength = 4096
    max_response_length: MaxResponseLength = 2048  # the thinking and the verdict
    num_generations: NumGenerations = 4
    # conf/judge.yaml: one replica over the GPUs of a node
    tensor_parallel: TensorParallel = None
    gpu_memory_utilization: GPUMemoryUtilization = 0.6
    # -1: less than a wrong one, so that a group of malformed and wrong answers learns the form
    malformed_reward: Annotated[
        NonPositiveNumber,
        Setting("reward of an answer without a verdict; -1: less than that of a wrong one"),
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
    # separate: each order of a pair is a prompt of its own. Those that need both orders in the data, and have them in
    # one batch (convrec data judge --both-orders): consistent, an answer earns 1 where it and its partner to the other
    # order are right (J1, arXiv 2505.10320); together, the answers to both orders are one group (EIS-GRPO,
    # arXiv 2505.13346)
    orders: Annotated[
        Orders,
        Setting("whether and how the two orders of a pair count together: docs/how-to/judges.md"),
    ] = "separate"
