"""Settings of Rank-GRPO and its baselines. Defaults are the paper's full scale (Qwen2.5-0.5B on 4 x 80 GB)."""

from dataclasses import dataclass
from typing import Annotated

from convrec.base import kinds
from convrec.base.fields import Setting
from convrec.base.kinds import AboveOne, Boolean, NonPositiveNumber, PositiveInteger, PositiveNumber
from convrec.lists.rank_rewards import DEFAULT_REWARD
from convrec.lists.settings import ListSettings
from convrec.settings.choices import Algorithm, Attributes, Combination, Matching, Preset, Repair, Reward, Weights
from convrec.settings.readers import absolute_path, comma_separated, parse_weights
from convrec.settings.training import (
    QWEN,
    Candidates,
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

ALGORITHM_GROUP = "algorithm_preset"  # a group of conf/, not a key of the config


def default_matching(preset: str) -> str:
    """Return the matching that a preset uses by default."""
    return "reference" if preset == "reference" else ListSettings.matching


@dataclass(frozen=True, kw_only=True)
class RankGRPOConfig(ListSettings, RLConfig):
    """Settings of the recipe `rank_grpo`."""

    model: Model = QWEN
    train_file: TrainFile = "data/reddit_v2/train.parquet"
    val_file: ValFile = "data/reddit_v2/validation.parquet"
    save_freq: SaveFreq = 200
    test_freq: TestFreq = 200
    total_epochs: TotalEpochs = 2
    train_batch_size: TrainBatchSize = 48  # 48 x 8 = 384 responses per step
    max_prompt_length: MaxPromptLength = 2048
    max_response_length: MaxResponseLength = 1024
    num_generations: NumGenerations = 8
    tensor_parallel: TensorParallel = 1
    gpu_memory_utilization: GPUMemoryUtilization = None

    catalog_file: Annotated[
        kinds.Path,
        Setting("catalog", variable="CATALOG_FILE", read=absolute_path),
    ] = "data/reddit_v2/catalog.parquet"
    candidates: Candidates = 0
    # None is replaced by `default_matching`
    matching: Annotated[
        Matching,
        Setting("comparison of titles", null="fuzzy; reference with PRESET=reference"),
    ] = None  # type: ignore[assignment]
    reward: Annotated[
        Reward,
        Setting("rank return: weight of later hits at a rank", variable="REWARD"),
    ] = DEFAULT_REWARD
    gamma: Annotated[
        AboveOne | None,
        Setting("parameter of the reward exp_gamma", null="unset"),
    ] = None
    rewards: Annotated[
        Weights | None,
        Setting(
            "parts of the rank reward and their weights, for example `relevance: 1, diversity: 0.1`",
            variable="REWARDS",
            null="only REWARD",
            read=parse_weights,
        ),
    ] = None
    reward_combination: Annotated[
        Combination,
        Setting("order of REWARDS: normalise each part within prompt and rank, then sum; or sum the parts first"),
    ] = "normalised"
    algorithm: Annotated[
        Algorithm | None,
        Setting("method or baseline", key=ALGORITHM_GROUP, variable="ALGORITHM", default="rank_grpo"),
    ] = None
    preset: Annotated[
        Preset,
        Setting("eq. 6 of the paper, or token mean and shaping as in its public code", variable="PRESET"),
    ] = "paper"
    constrained: Annotated[
        Boolean,
        Setting("restriction of lists to unseen catalog items, in sampling and training", variable="CONSTRAINED"),
    ] = False
    repair: Annotated[
        Repair,
        Setting("zero: if no rollout of a prompt has a hit, one of them gets a relevant title", variable="REPAIR"),
    ] = "none"
    repair_ranks: Annotated[
        PositiveInteger | None,
        Setting("number of leading ranks among which a repair chooses", null="all N"),
    ] = None
    ask: Annotated[
        Attributes | None,
        Setting(
            "attributes that the model may ask about before it writes a list: columns of the catalog, or decade; "
            "comma-separated",
            variable="ASK",
            null="no questions",
            read=comma_separated,
        ),
    ] = None
    max_turns: Annotated[
        PositiveInteger,
        Setting("ASK: maximum number of turns of the model; the last one is a list", variable="MAX_TURNS"),
    ] = 3
    ask_cost: Annotated[
        PositiveNumber,
        Setting("ASK: cost of a question, in DCG of the list", variable="ASK_COST"),
    ] = 0.05  # a twentieth of a hit at the first rank
    # 1/8 of the paper's 384 lists are 48, some 10,000 tokens
    rollout_check_share: Annotated[
        kinds.Fraction,
        Setting(
            "share of a prompt's lists (at least one) with log-probs from vLLM, if these only serve the comparison "
            "with the actor: one update per batch, no rollout correction, no REPAIR"
        ),
    ] = 0.125
    overflow_penalty: Annotated[
        NonPositiveNumber,
        Setting("advantage of an item after the N-th"),
    ] = -0.1
    underflow_penalty: Annotated[
        NonPositiveNumber,
        Setting("advantage of the stop token of a list with fewer than N items"),
    ] = -0.1
    mask_truncated: Annotated[
        Boolean,
        Setting("removal of responses without a stop token from the loss (PRESET=reference: also from the token mean)"),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.matching:
            object.__setattr__(self, "matching", default_matching(self.preset))
