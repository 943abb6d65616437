"""The settings of lists and their matching, which training, evaluation and data preparation share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from convrec.base.fields import Setting, Settings, setting_rows
from convrec.base.kinds import Character, NonNegativeInteger, Percentage, PositiveInteger, Text
from convrec.lists.ranks import DEFAULT_DELIMITER
from convrec.titles.catalog import Catalog
from convrec.titles.matching import DEFAULT_MATCHING, FUZZY_CUTOFF, YEAR_TOLERANCE, Matcher, make_named_matcher


@dataclass(frozen=True, kw_only=True)
class ListSettings(Settings):
    """The settings of lists, with the paper's defaults. `convrec.settings.rank_grpo.RankGRPOConfig` has them, too.

    Raises:
        UserError: a value is invalid.
    """

    num_items: Annotated[
        PositiveInteger,
        Setting("items in a list = ranks (N)", variable="NUM_ITEMS", also=("N_ITEMS",)),
    ] = 20
    delimiter: Annotated[
        Character,
        Setting("character that separates the items of a list"),
    ] = DEFAULT_DELIMITER
    # A text, since MATCHERS has the names; `make_matcher` refuses others.
    matching: Annotated[
        Text,
        Setting("how titles are compared"),
    ] = DEFAULT_MATCHING
    year_tolerance: Annotated[
        NonNegativeInteger,
        Setting("maximum difference between the years of the same item"),
    ] = YEAR_TOLERANCE
    fuzzy_cutoff: Annotated[
        Percentage,
        Setting("minimum similarity of titles, including years, in matching `fuzzy`"),
    ] = FUZZY_CUTOFF

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ListSettings":
        """Read the settings from a mapping that may have other keys, too; a missing or None value means the default."""
        return ListSettings(**{name: values[name] for name in KINDS if values.get(name) is not None})


KINDS: Mapping[str, Any] = {name: row.kind for name, row in setting_rows(ListSettings).items()}


def make_matcher(catalog: Catalog, settings: ListSettings) -> Matcher:
    """Make the matcher that these settings name.

    Raises:
        UserError: see convrec.titles.matching.make_named_matcher.
    """
    return make_named_matcher(settings.matching, catalog, settings.year_tolerance, settings.fuzzy_cutoff)
