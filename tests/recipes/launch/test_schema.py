"""The schema of `convrec:` knows every setting of conf/, with its default, and is light to import."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from convrec.errors import UserError
from convrec.lists.matching import MATCHERS
from convrec.lists.rank_rewards import DEFAULT_REWARD, RANK_REWARDS
from convrec.lists.reward_parts import PART_NAMES
from recipes.launch import schema
from recipes.launch.recipe import RECIPES, Recipe
from recipes.launch.settings import compose_files
from recipes.launch.variables import VARIABLES

ROOT = Path(__file__).resolve().parents[3]


def section(*recipes: str) -> dict[str, Any]:
    """`convrec:` of these files of conf/."""
    found: dict[str, Any] = {}
    for recipe in recipes:
        found |= yaml.safe_load((ROOT / "conf" / f"{recipe}.yaml").read_text()).get("convrec", {})
    return found


def test_the_shipped_settings_are_the_schemas_with_its_defaults() -> None:
    assert section("rl") == asdict(schema.RLSettings())
    assert section("rl", "rank_grpo") == asdict(schema.RankGRPOSettings())
    assert section("rl", "judge", "judge_pointwise") == asdict(schema.JudgeSettings())
    assert section("rl", "judge", "judge_pairwise") == asdict(schema.PairwiseJudgeSettings())
    assert section("sft") == asdict(schema.RunSettings())


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_defaults_of_every_recipe_pass(recipe: Recipe) -> None:
    compose_files(recipe, [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"reward": "foo"},
            "convrec.reward=foo: expected one of exp_inf, log_decay, exp_gamma, or package.module:funct",
        ),
        ({"reward": None}, "convrec.reward=null: expected one of exp_inf"),
        ({"matching": "foo"}, "convrec.matching=foo: expected one of fuzzy, exact, reference, or null"),
        ({"preset": "foo"}, "convrec.preset=foo: expected one of paper, reference"),
        ({"num_items": 0}, "convrec.num_items=0: expected a positive integer"),
        ({"delimiter": "\n\n"}, "convrec.delimiter=\\n\\n: expected one ASCII character"),
        ({"gamma": 1}, "convrec.gamma=1: expected a number above 1, or null"),
        ({"overflow_penalty": 0.1}, "convrec.overflow_penalty=0.1: expected a number of at most 0"),
        ({"mask_truncated": "yes"}, "convrec.mask_truncated=yes: expected true or false"),
        ({"deterministic": 1}, "convrec.deterministic=1: expected true or false"),
        ({"rollout_check_bound": 0}, "convrec.rollout_check_bound=0: expected a positive number"),
        ({"reward_timeout": "10 s"}, "convrec.reward_timeout=10 s: expected a positive number"),
        ({"numitems": 5}, "convrec.numitems: no such setting; did you mean convrec.num_items?"),
    ],
)
def test_a_wrong_setting_is_told_as_a_wrong_variable_is(change: dict[str, Any], said: str) -> None:
    config = OmegaConf.create({"convrec": asdict(schema.RankGRPOSettings()) | change})
    with pytest.raises(UserError) as error:
        schema.check(config, schema.RankGRPOSettings)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    "wrong", ["abc", [], [[5, 1e-6]], [[0, 1e-6], [0, 1e-7]], [[0, 0]], [[0]], [0, 1e-6], [["0", 1e-6]], [[0, "x"]]]
)
def test_a_schedule_begins_at_step_0_and_rises(wrong: Any) -> None:
    good = [[0, 1e-6], [8000, 1e-7]]
    assert schema.SCHEDULE.fits(good)
    config = OmegaConf.create({"convrec": asdict(schema.RLSettings()) | {"lr_schedule": wrong}})
    with pytest.raises(UserError, match=r"convrec\.lr_schedule=.*: expected \(step, lr\) pairs"):
        schema.check(config, schema.RLSettings)


def test_a_judge_has_no_settings_of_lists() -> None:
    with pytest.raises(UserError, match=r"convrec\.num_items: no such setting"):
        schema.check(OmegaConf.create({"convrec": asdict(schema.RankGRPOSettings())}), schema.JudgeSettings)


def test_the_settings_of_judges() -> None:
    for wrong, said in (
        ({"orders": "both"}, "convrec.orders=both: expected one of separate, consistent, together"),
        ({"malformed_reward": 1}, "convrec.malformed_reward=1: expected a number of at most 0"),
    ):
        config = OmegaConf.create({"convrec": asdict(schema.PairwiseJudgeSettings()) | wrong})
        with pytest.raises(UserError, match=said):
            schema.check(config, schema.PairwiseJudgeSettings)


def test_the_section_cannot_be_replaced_by_a_value() -> None:
    with pytest.raises(UserError, match="convrec=5: it is a section"):
        schema.check(OmegaConf.create({"convrec": 5}), schema.RankGRPOSettings)


def test_a_reward_and_a_matching_are_known_by_their_entries_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    config = OmegaConf.create({"convrec": asdict(schema.RankGRPOSettings()) | {"reward": "new", "matching": "newer"}})
    (variable,) = (variable for variable in VARIABLES if variable.name == "REWARD")
    with pytest.raises(ValueError, match="exp_inf"):
        variable.parse("new")
    monkeypatch.setitem(RANK_REWARDS, "new", RANK_REWARDS[DEFAULT_REWARD])
    monkeypatch.setitem(MATCHERS, "newer", MATCHERS["fuzzy"])
    schema.check(config, schema.RankGRPOSettings)
    assert variable.parse("new") == "new"


def test_the_specification_names_every_rank_reward_and_matching() -> None:
    method = (ROOT / "docs" / "explanation" / "method.md").read_text(encoding="utf-8")
    assert [name for name in (*RANK_REWARDS, *MATCHERS) if f"\n| `{name}`" not in method] == []
    parts = (ROOT / "docs" / "how-to" / "settings.md").read_text(encoding="utf-8")
    assert [name for name in PART_NAMES if f"\n| `{name}`" not in parts] == []


def test_the_schema_imports_nothing_heavy() -> None:
    heavy = ("torch", "verl", "ray", "transformers", "pandas", "hydra")
    code = f"import sys, recipes.launch.schema; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
