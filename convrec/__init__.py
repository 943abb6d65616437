"""Rank-GRPO for conversational recommenders: the library. `from convrec import Recommender` serves a trained model."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convrec.serving.recommender import Recommendations, RecommendedItem, Recommender

__all__ = ["Recommendations", "RecommendedItem", "Recommender"]


def __getattr__(name: str) -> Any:
    """The names above, imported when they are asked for: the library's parts must not load vLLM."""
    if name in __all__:
        from convrec.serving import recommender

        return getattr(recommender, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
