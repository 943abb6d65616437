"""A worker without our registrations, or with another convrec, stops the run and says where and why."""

import sys
from pathlib import Path
from typing import Any

import pytest

from convrec.training import registration


@pytest.fixture
def good() -> dict[str, Any]:
    return {
        "node": "10.0.0.7",
        "source": "/somewhere/convrec",
        "digest": registration.source_digest(),
        "adv_estimator": True,
        "policy_loss": True,
    }


def test_equal_workers_pass(good: dict[str, Any]) -> None:
    registration.check(good, registration.source_digest())


@pytest.mark.parametrize("name", ["adv_estimator", "policy_loss"])
def test_missing_name_is_told_with_node_and_source(good: dict[str, Any], name: str) -> None:
    with pytest.raises(RuntimeError) as error:
        registration.check(good | {name: False}, registration.source_digest())
    message = str(error.value)
    assert f"10.0.0.7 lacks the {name} `rank_grpo`" in message
    assert "/somewhere/convrec" in message
    assert "install" in message


def test_both_names_missing_are_both_told(good: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="adv_estimator and policy_loss"):
        registration.check(good | {"adv_estimator": False, "policy_loss": False}, registration.source_digest())


def test_other_source_is_told_with_both_digests(good: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError) as error:
        registration.check(good | {"digest": "0123456789abcdef"}, registration.source_digest())
    message = str(error.value)
    assert "10.0.0.7" in message
    assert "0123456789abcdef instead of " + registration.source_digest() in message


def test_digest_depends_on_the_source_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def digest_of(folder: str, text: str) -> str:
        package = tmp_path / folder
        (package / "training").mkdir(parents=True)
        (package / "lists").mkdir()
        (package / "lists" / "ranks.py").write_text(text)
        monkeypatch.setattr(registration, "__file__", str(package / "training" / "registration.py"))
        return registration.source_digest()

    assert digest_of("a", "x = 1") == digest_of("b", "x = 1")
    assert digest_of("c", "x = 2") != digest_of("d", "x = 1")


def test_digest_covers_the_reward_that_this_process_would_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def digest_with(folder: str, text: str) -> str:
        package = tmp_path / folder / "reward"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "catalog_match.py").write_text(text)
        monkeypatch.delitem(sys.modules, "reward", raising=False)
        monkeypatch.syspath_prepend(package.parent)
        return registration.source_digest()

    assert digest_with("a", "x = 1") == digest_with("b", "x = 1")
    assert digest_with("c", "x = 2") != digest_with("d", "x = 1")


@pytest.mark.parametrize("file", ["users_rewards.py", "users_rewards/deep/rank.py"])
def test_digest_covers_the_package_of_the_users_reward(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str
) -> None:
    def digest_with(folder: str, text: str) -> str:
        path = tmp_path / folder / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / folder)
            patch.setenv(registration.USER_MODULE, "users_rewards.deep.rank")
            return registration.source_digest()

    without = registration.source_digest()
    assert len({without, digest_with("a", "x = 1"), digest_with("b", "x = 1"), digest_with("c", "x = 2")}) == 3
    monkeypatch.setenv(registration.USER_MODULE, "users_rewards.deep.rank")
    assert registration.source_digest() == without  # a node that does not have it


def test_a_package_that_lies_in_two_folders_of_the_path_counts_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without __init__.py both are its folders, as on a node that sees the driver's disk beside what was uploaded."""
    digests = []
    for folder in ("driver", "node"):
        (tmp_path / folder / "two_folders").mkdir(parents=True)
        (tmp_path / folder / "two_folders" / "rank.py").write_text("X = 1\n")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        monkeypatch.setenv(registration.USER_MODULE, "two_folders.rank")
        digests.append(registration.source_digest())
    assert digests[0] == digests[1]


def test_another_version_of_the_users_reward_is_told(good: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registration.USER_MODULE, "users_rewards")
    with pytest.raises(RuntimeError, match=r"10\.0\.0\.7 runs another convrec or users_rewards than the driver"):
        registration.check(good | {"digest": "0123456789abcdef"}, registration.source_digest())


def test_a_process_that_registered_reports_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.1")
    registration.register()
    registration.register()  # again: nothing happens
    report = registration.report()
    assert report["adv_estimator"]
    assert report["policy_loss"]
    monkeypatch.setenv(registration.DRIVERS_DIGEST, registration.source_digest())
    registration.check_worker()


def test_registered_functions_refuse_to_train_without_the_trainer() -> None:
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

    registration.register()
    for function in (get_adv_estimator_fn("rank_grpo"), get_policy_loss_fn("rank_grpo")):
        with pytest.raises(ValueError, match="trainer_mode=rank_grpo"):
            function(token_level_rewards=None)
