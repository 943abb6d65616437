"""What a list is and how its items are compared: the settings that training, evaluation and data preparation share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from convrec import kinds
from convrec.kinds import Character, NonNegativeInteger, Percentage, PositiveInteger, Text
from convrec.lists.ranks import DEFAULT_DELIMITER


@dataclass(frozen=True)
class ListSettings:
    """The defaults are the paper's; conf/rank_grpo.yaml repeats them, which a test compares.

    Raises UserError for a value of another kind.
    """

    num_items: PositiveInteger = 20
    delimiter: Character = DEFAULT_DELIMITER
    matching: Text = "fuzzy"  # a name of matching.MATCHERS, which imports this
    year_tolerance: NonNegativeInteger = 2
    fuzzy_cutoff: Percentage = 90

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            kinds.check(name, getattr(self, name), kind)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ListSettings":
        """From a mapping that may hold other things too. What it lacks, or has as None, is the default."""
        return cls(**{name: values[name] for name in KINDS if values.get(name) is not None})


KINDS: Mapping[str, Any] = get_type_hints(ListSettings, include_extras=True)
