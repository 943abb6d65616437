"""The settings of lists: their checks and the paper's defaults."""

import inspect
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from convrec.base.errors import UserError
from convrec.lists.settings import ListSettings, make_matcher
from convrec.titles.catalog import Catalog
from convrec.titles.matching import MATCHERS, Matcher

CONF = Path(__file__).resolve().parents[3] / "conf"


def test_the_reward_gets_every_setting_of_lists():
    function = yaml.safe_load((CONF / "rank_grpo.yaml").read_text())["reward"]["custom_reward_function"]
    arguments = {name: f"${{convrec.{name}}}" for name in asdict(ListSettings())}
    assert function["reward_kwargs"].items() >= arguments.items()


def test_an_invalid_value_is_refused():
    with pytest.raises(UserError, match="num_items=0"):
        ListSettings(num_items=0)
    assert ListSettings.matching in MATCHERS


def test_the_matchers_defaults_are_those_of_the_settings():
    defaults = {name: parameter.default for name, parameter in inspect.signature(Matcher).parameters.items()}
    lists = ListSettings()
    assert defaults["mode"] == lists.matching
    assert (defaults["year_tolerance"], defaults["fuzzy_cutoff"]) == (lists.year_tolerance, lists.fuzzy_cutoff)


def test_a_matcher_has_the_settings_of_lists():
    catalog = Catalog.from_items([("Heat", 1995)])
    matcher = make_matcher(catalog, ListSettings(matching="lenient", year_tolerance=1, fuzzy_cutoff=80))
    assert matcher.catalog is catalog
    assert (matcher.mode, matcher.year_tolerance, matcher.fuzzy_cutoff) == ("lenient", 1, 80)


def test_missing_and_none_values_of_a_mapping_are_defaults():
    values = {"num_items": 5, "matching": None, "reward": "log_decay", "year_tolerance": 0}
    assert ListSettings.of(values) == ListSettings(num_items=5, year_tolerance=0)
