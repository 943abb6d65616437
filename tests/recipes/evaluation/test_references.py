"""The model that each model is compared with: the one that its run started from, or the first."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recipes.evaluation.references import choose_references
from tests.conftest import mark_complete

MakeRun = Callable[[str, str], str]


@pytest.fixture
def make_run(tmp_path: Path, sound_model: Callable[..., Path]) -> MakeRun:
    """Write a run with one checkpoint, and return the folder of its model."""

    def write(name: str, start: str) -> str:
        run = tmp_path / name
        model = sound_model(run / "global_step_2" / "actor" / "huggingface")
        mark_complete(run, 2)
        (run / "config.yaml").write_text(f"actor_rollout_ref: {{model: {{path: {start}}}}}\n")
        return str(model)

    return write


def choose(**models: str) -> dict[str, str]:
    return choose_references({name: {"model_path": path} for name, path in models.items()})


def test_a_model_is_compared_with_the_one_that_its_run_started_from(
    tmp_path: Path, make_run: MakeRun, sound_model: Callable[..., Path]
) -> None:
    zero_shot = str(sound_model(tmp_path / "model"))
    sft = make_run("sft", zero_shot)
    rl = make_run("rl", sft)
    other_rl = make_run("other_rl", sft)
    assert choose(zero_shot=zero_shot, sft=sft, rl=rl) == {"sft": "zero_shot", "rl": "sft"}
    assert choose(sft=sft, rl=rl, other_rl=other_rl) == {"rl": "sft", "other_rl": "sft"}
    # the order does not matter, and no pair is there twice
    assert choose(rl=rl, sft=sft, zero_shot=zero_shot) == {"rl": "sft", "sft": "zero_shot"}
    assert choose(rl=rl, popular=str(tmp_path), sft=sft) == {"rl": "sft", "popular": "rl"}


def test_otherwise_a_model_is_compared_with_the_first(tmp_path: Path, make_run: MakeRun) -> None:
    sft = make_run("sft", "org/base")
    rl = make_run("rl", sft)
    other_rl = make_run("other_rl", sft)
    assert choose(sft=sft) == {}
    assert choose(rl=rl, other_rl=other_rl) == {"other_rl": "rl"}
    assert choose(api="api:m", base="org/base", sft=sft, rl=rl) == {"base": "api", "sft": "base", "rl": "sft"}
    later_step = str(tmp_path / "sft" / "global_step_4" / "huggingface")
    assert choose(base="org/base", later=later_step, rl=rl) == {"later": "base", "rl": "base"}


def test_paths_may_be_relative_and_linked(tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    rl = make_run("rl", "sft/global_step_2/actor/huggingface")
    make_run("sft", "org/base")
    (tmp_path / "link").symlink_to(tmp_path / "sft")
    monkeypatch.chdir(tmp_path)
    linked = str(tmp_path / "link" / "global_step_2" / "actor" / "huggingface")
    assert choose(base="org/base", sft=linked, rl=rl) == {"sft": "base", "rl": "sft"}


def test_runs_whose_configs_name_each_other_end(tmp_path: Path, make_run: MakeRun) -> None:
    """A resumed run may be given another MODEL_PATH, which it does not read again."""
    second = make_run("second", str(tmp_path / "first" / "global_step_2" / "actor" / "huggingface"))
    first = make_run("first", second)
    itself = make_run("itself", str(tmp_path / "itself" / "global_step_2" / "actor" / "huggingface"))
    assert choose(first=first, second=second, itself=itself) == {"second": "first", "itself": "first"}
