"""The table of settings: each is declared once, has a default of its kind, and is found by its names elsewhere."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from convrec.base.errors import UserError
from convrec.base.fields import Settings, rows_by_key, setting_rows
from convrec.settings.judges import PairwiseJudgeConfig, PointwiseJudgeConfig
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.sft import SFTConfig

CONF = Path(__file__).resolve().parents[3] / "conf"
CONFIGS = (SFTConfig, RankGRPOConfig, PointwiseJudgeConfig, PairwiseJudgeConfig)
INTERPOLATION = re.compile(r"\$\{.+\}")


def leaves(section: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@pytest.mark.parametrize("config", CONFIGS)
def test_every_default_is_a_value_of_its_setting(config: type[Settings]) -> None:
    rows = setting_rows(config).values()
    assert [row.field for row in rows if row.has_default and not row.takes(row.default)] == []


def test_conf_repeats_no_setting_except_interpolations() -> None:
    """Files of groups, such as a host or a scale, may change settings: the user chooses them."""
    keys = {key for config in CONFIGS for key in rows_by_key(config)}
    for file in sorted(CONF.glob("*.yaml")):
        stated = dict(leaves(yaml.safe_load(file.read_text(encoding="utf-8"))))
        repeated = [key for key in keys & stated.keys() if not INTERPOLATION.fullmatch(str(stated[key]))]
        assert repeated == [], file.name
        assert [key for key in stated if key.startswith("convrec.")] == [], file.name


def test_the_matching_follows_the_preset_unless_it_is_given() -> None:
    assert RankGRPOConfig().matching == "fuzzy"
    assert RankGRPOConfig(preset="reference").matching == "reference"
    assert RankGRPOConfig(preset="reference", matching="lenient").matching == "lenient"


def test_a_path_may_be_an_object() -> None:
    assert SFTConfig(train_file=Path("data/train.parquet")).train_file == "data/train.parquet"


@pytest.mark.parametrize(
    ("config", "name", "meant"),
    [
        (RankGRPOConfig, "lr", "learning_rate"),
        (RankGRPOConfig, "rollout_n", "num_generations"),
        (RankGRPOConfig, "max_completion_length", "max_response_length"),
        (RankGRPOConfig, "beta", "kl_loss_coef"),
        (RankGRPOConfig, "per_device_train_batch_size", "train_batch_size"),
        (RankGRPOConfig, "save_path", "output_dir"),
        (RankGRPOConfig, "num_itms", "num_items"),
        (SFTConfig, "num_train_epochs", "total_epochs"),
        (SFTConfig, "max_seq_length", "max_length"),
        (SFTConfig, "train_files", "train_file"),
        (SFTConfig, "eval_steps", "test_freq"),
    ],
)
def test_unknown_setting_suggests_the_intended_one(config: type[Settings], name: str, meant: str) -> None:
    with pytest.raises(UserError) as error:
        config(**{name: 1})
    assert str(error.value).startswith(name)
    assert meant in str(error.value)


@pytest.mark.parametrize("config", CONFIGS)
def test_synonyms_stand_for_existing_settings(config: type[Settings]) -> None:
    rows = setting_rows(config)
    assert set(config.synonyms.values()) <= {*rows, *setting_rows(SFTConfig)}
    assert not set(config.synonyms) & rows.keys()


@pytest.mark.parametrize(
    ("config", "values", "beginning", "expected"),
    [
        (RankGRPOConfig, {"num_generations": 0}, "num_generations=0: ", "a positive integer"),
        (RankGRPOConfig, {"gamma": 1}, "gamma=1: ", "a number above 1, or None"),
        (RankGRPOConfig, {"reward": None}, "reward=null: ", "one of exp_inf"),
        (SFTConfig, {"train_batch_size": "8"}, "train_batch_size=8: ", "a positive integer, or None"),
        (PairwiseJudgeConfig, {"orders": "both"}, "orders=both: ", "one of separate, consistent, together"),
    ],
)
def test_a_value_of_another_kind_is_refused(
    config: type[Settings], values: dict[str, Any], beginning: str, expected: str
) -> None:
    with pytest.raises(UserError) as error:
        config(**values)
    assert str(error.value).startswith(beginning)
    assert expected in str(error.value)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        RankGRPOConfig().num_items = 5  # type: ignore[misc]
