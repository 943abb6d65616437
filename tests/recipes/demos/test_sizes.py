"""Both demos compose, with the sizes that help and tutorial state."""

from pathlib import Path

import pytest

from convrec.base.options import describe_options
from data_prep.options.sample import SampleOptions
from recipes.demos.sizes import PRETRAINED, TINY, Demo, read_runs
from recipes.experiments.matrix_runs import composed
from recipes.options.demo import DemoOptions
from tests.user_errors import refuses


@pytest.mark.parametrize("demo", [TINY, PRETRAINED], ids=["tiny", "pretrained"])
def test_the_trainings_have_the_steps_of_their_demo(demo: Demo, tmp_path: Path) -> None:
    sft, rl, _ = read_runs(demo, tmp_path)
    steps = {name: run.settings.total_steps for name, run in composed([sft, rl], tmp_path).items()}
    assert steps == {"sft": demo.sft_steps, "rank_grpo": demo.rl_steps}


@pytest.mark.parametrize("demo", [TINY, PRETRAINED], ids=["tiny", "pretrained"])
def test_data_training_and_evaluation_agree_on_list_length(demo: Demo, tmp_path: Path) -> None:
    _, rl, evaluation = read_runs(demo, tmp_path)
    options = dict(zip(demo.sample[::2], demo.sample[1::2], strict=True))
    num_items = int(options.get("--num-items", SampleOptions.num_items))
    assert composed([rl], tmp_path)["rank_grpo"].settings.num_items == num_items
    assert evaluation.get("num_items", 20) == max(evaluation["ks"]) == num_items


def test_the_help_has_the_sizes() -> None:
    texts = {name: option.help for option in describe_options(DemoOptions) for name in option.names}
    for name, tiny, pretrained in (
        ("--out", TINY.out, PRETRAINED.out),
        ("--sft-steps", TINY.sft_steps, PRETRAINED.sft_steps),
        ("--rl-steps", TINY.rl_steps, PRETRAINED.rl_steps),
    ):
        assert f"({tiny}; {pretrained})" in texts[name]


def test_the_tutorial_has_the_sizes(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "tutorials" / "pretrained.md").read_text(encoding="utf-8")
    sft, rl, _ = read_runs(PRETRAINED, tmp_path)
    batch, lists = rl.variables["TRAIN_BATCH_SIZE"], rl.variables["ROLLOUT_N"]
    assert f"{PRETRAINED.sft_steps} steps of {sft.variables['TRAIN_BATCH_SIZE']} lists each" in page
    assert f"{PRETRAINED.rl_steps} steps of {batch} conversations x {lists} lists" in page
    assert f"{PRETRAINED.memory_gib:.0f} GiB of free memory and {PRETRAINED.disk_gib:.0f} GiB of disk" in page


def test_a_folder_that_yaml_would_misread_is_refused(tmp_path: Path) -> None:
    with refuses("demo.unsupported-out", 'a"b'):
        read_runs(TINY, tmp_path / 'a"b')
