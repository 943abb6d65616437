"""Rank-GRPO for conversational recommenders. The public API is `__all__`; all other names may change."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convrec.api import CommandFailed, TrainedRun, evaluate, train
    from convrec.base.errors import UserError
    from convrec.inference.lists import Recommendations, RecommendedItem
    from convrec.inference.recommender import Recommender
    from convrec.settings.judges import PairwiseJudgeConfig, PointwiseJudgeConfig
    from convrec.settings.rank_grpo import RankGRPOConfig
    from convrec.settings.sft import SFTConfig

_MODULES = {
    "CommandFailed": "convrec.api",
    "PairwiseJudgeConfig": "convrec.settings.judges",
    "PointwiseJudgeConfig": "convrec.settings.judges",
    "RankGRPOConfig": "convrec.settings.rank_grpo",
    "Recommendations": "convrec.inference.lists",
    "RecommendedItem": "convrec.inference.lists",
    "Recommender": "convrec.inference.recommender",
    "SFTConfig": "convrec.settings.sft",
    "TrainedRun": "convrec.api",
    "UserError": "convrec.base.errors",
    "evaluate": "convrec.api",
    "train": "convrec.api",
}

__all__ = [
    "CommandFailed",
    "PairwiseJudgeConfig",
    "PointwiseJudgeConfig",
    "RankGRPOConfig",
    "Recommendations",
    "RecommendedItem",
    "Recommender",
    "SFTConfig",
    "TrainedRun",
    "UserError",
    "evaluate",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import public names lazily, so that importing a part of the library does not load vLLM."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
