"""A worker with another version of convrec stops the run with a message about place and reason."""

import re
import sys
from pathlib import Path

import pytest
import ray

from convrec.training import registration


def test_worker_with_matching_or_no_driver_digest_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registration.check_worker()
    monkeypatch.setenv(registration.DRIVERS_DIGEST, registration.compute_source_digest())
    registration.check_worker()


@pytest.mark.parametrize("module", ["", "users_rewards"])
def test_another_source_is_reported_with_its_place(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setenv(registration.USER_MODULE, module)
    monkeypatch.setenv(registration.DRIVERS_DIGEST, "0123456789abcdef")
    digest, source = registration.compute_source_digest(), Path(registration.__file__).parents[1]
    what = f"convrec or {module}" if module else "convrec"
    place = rf"{source}, {digest} instead of 0123456789abcdef"
    node = re.escape(ray.util.get_node_ip_address())
    said = rf"a worker on {node} has another version of {what} than the driver \({place}\)"
    with pytest.raises(RuntimeError, match=said):
        registration.check_worker()


def written(folder: Path, file: str, text: str) -> Path:
    """The folder, with the package that the file is of."""
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text(text)
    return folder


def test_digest_depends_on_the_source_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def digest_of(folder: str, text: str) -> str:
        package = written(tmp_path / folder, "lists/ranks.py", text)
        monkeypatch.setattr(registration, "__file__", str(package / "training" / "registration.py"))
        return registration.compute_source_digest()

    assert digest_of("a", "x = 1") == digest_of("b", "x = 1")
    assert digest_of("c", "x = 2") != digest_of("d", "x = 1")
    before = digest_of("e", "x = 1")
    (tmp_path / "e" / "lists" / "words.yaml").write_text("grey: gray")
    assert registration.compute_source_digest() != before


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("reward/__init__.py", ""),
        ("users_rewards.py", "users_rewards.deep.rank"),
        ("users_rewards/deep/rank.py", "users_rewards.deep.rank"),
    ],
)
def test_digest_covers_the_reward_that_this_process_would_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, module: str
) -> None:
    def digest_with(folder: str, text: str) -> str:
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "reward", raising=False)
            patch.syspath_prepend(written(tmp_path / folder, file, text))
            patch.setenv(registration.USER_MODULE, module)
            return registration.compute_source_digest()

    without = registration.compute_source_digest()
    assert digest_with("a", "x = 1") == digest_with("b", "x = 1") != without
    assert digest_with("c", "x = 2") not in (without, digest_with("d", "x = 1"))
    monkeypatch.setenv(registration.USER_MODULE, module)
    assert registration.compute_source_digest() == without  # a node that does not have it


def test_package_found_in_two_path_folders_is_hashed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without __init__.py both folders belong to it, as on a node that sees the driver's disk and the uploaded copy."""
    digests = []
    for folder in ("driver", "node"):
        (tmp_path / folder / "two_folders").mkdir(parents=True)
        (tmp_path / folder / "two_folders" / "rank.py").write_text("X = 1\n")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        monkeypatch.setenv(registration.USER_MODULE, "two_folders.rank")
        digests.append(registration.compute_source_digest())
    assert digests[0] == digests[1]


def test_registered_functions_refuse_to_train_without_trainer() -> None:
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

    registration.register()
    registration.register()  # again: nothing happens
    for function in (get_adv_estimator_fn("rank_grpo"), get_policy_loss_fn("rank_grpo")):
        with pytest.raises(ValueError, match="trainer_mode=rank_grpo"):
            function(token_level_rewards=None)
