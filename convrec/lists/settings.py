"""What a list is and how its items are compared: the settings that training, evaluation and data preparation share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from convrec.base.fields import Setting, Settings, setting_rows
from convrec.base.kinds import Character, NonNegativeInteger, Percentage, PositiveInteger, Text
from convrec.lists.ranks import DEFAULT_DELIMITER
from convrec.titles.catalog import Catalog
from convrec.titles.matching import DEFAULT_MATCHING, FUZZY_CUTOFF, YEAR_TOLERANCE, Matcher, matcher_named


@dataclass(frozen=True, kw_only=True)
class ListSettings(Settings):
    """The paper's lists. `convrec.settings.rank_grpo.RankGRPOConfig` has these settings too.

    Raises:
        UserError: a value is of another kind.
    """

    num_items: Annotated[
        PositiveInteger,
        Setting("items of a list = ranks (N)", variable="NUM_ITEMS", also=("N_ITEMS",)),
    ] = 20
    delimiter: Annotated[
        Character,
        Setting("character between the items of a list"),
    ] = DEFAULT_DELIMITER
    # the name of an entry of MATCHERS
    matching: Annotated[
        Text,
        Setting("how titles are compared"),
    ] = DEFAULT_MATCHING
    year_tolerance: Annotated[
        NonNegativeInteger,
        Setting("years by which the same item may differ"),
    ] = YEAR_TOLERANCE
    fuzzy_cutoff: Annotated[
        Percentage,
        Setting("least similarity of titles, years included, in matching `fuzzy`"),
    ] = FUZZY_CUTOFF

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ListSettings":
        """Take the settings from a mapping that may hold other things too.

        What the mapping lacks, or has as None, is the default.
        """
        return ListSettings(**{name: values[name] for name in KINDS if values.get(name) is not None})


KINDS: Mapping[str, Any] = {name: row.kind for name, row in setting_rows(ListSettings).items()}


def make_matcher(catalog: Catalog, settings: ListSettings) -> Matcher:
    """Return the matcher that these settings name. Raises UserError as `matcher_named`."""
    return matcher_named(settings.matching, catalog, settings.year_tolerance, settings.fuzzy_cutoff)
