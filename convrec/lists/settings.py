"""What a list is and how its items are compared: the settings that training, evaluation and data preparation share."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from convrec.kinds import CHARACTER, NON_NEGATIVE_INTEGER, PERCENTAGE, POSITIVE_INTEGER, TEXT, setting
from convrec.lists.ranks import DEFAULT_DELIMITER


@dataclass(frozen=True)
class ListSettings:
    """The defaults are the paper's; conf/rank_grpo.yaml repeats them, which a test compares."""

    num_items: int = setting(20, POSITIVE_INTEGER, "items asked for = ranks (N)")
    delimiter: str = setting(DEFAULT_DELIMITER, CHARACTER, "between items")
    matching: str = setting("fuzzy", TEXT, "how titles are compared")  # a name of matching.MATCHERS, which imports this
    year_tolerance: int = setting(2, NON_NEGATIVE_INTEGER, "years by which the same item may differ")
    fuzzy_cutoff: float = setting(90, PERCENTAGE, "least similarity of titles, years included, in matching `fuzzy`")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ListSettings":
        """From a mapping that may hold other things too. What it lacks, or has as None, is the default."""
        return cls(**{name: values[name] for name in NAMES if values.get(name) is not None})


NAMES = tuple(entry.name for entry in fields(ListSettings))
