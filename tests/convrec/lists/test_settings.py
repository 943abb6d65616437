"""The settings of lists: checked, with the paper's defaults."""

import inspect
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from convrec.base.errors import UserError
from convrec.lists.settings import ListSettings
from convrec.titles.matching import MATCHERS, Matcher

CONF = Path(__file__).resolve().parents[3] / "conf"


def test_the_reward_is_given_every_setting_of_lists():
    function = yaml.safe_load((CONF / "rank_grpo.yaml").read_text())["reward"]["custom_reward_function"]
    given = {name: f"${{convrec.{name}}}" for name in asdict(ListSettings())}
    assert function["reward_kwargs"].items() >= given.items()


def test_a_value_of_another_kind_is_refused():
    with pytest.raises(UserError, match="num_items=0: expected a positive integer"):
        ListSettings(num_items=0)
    assert ListSettings.matching in MATCHERS


def test_the_matchers_own_defaults_are_these():
    defaults = {name: parameter.default for name, parameter in inspect.signature(Matcher).parameters.items()}
    of_lists = ListSettings()
    assert defaults["mode"] == of_lists.matching
    assert (defaults["year_tolerance"], defaults["fuzzy_cutoff"]) == (of_lists.year_tolerance, of_lists.fuzzy_cutoff)


def test_what_a_mapping_lacks_or_has_as_none_is_the_default():
    given = {"num_items": 5, "matching": None, "reward": "log_decay", "year_tolerance": 0}
    assert ListSettings.of(given) == ListSettings(num_items=5, year_tolerance=0)
