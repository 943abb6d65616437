"""Both demos are runs that compose; in bf16 where the CPU has it."""

from pathlib import Path

import pytest

from convrec.base.errors import UserError
from convrec.base.options import describe_options
from data_prep.options.sample import SampleOptions
from recipes.demos import sizes
from recipes.demos.sizes import PRETRAINED, TINY, Demo, has_bf16, read_runs
from recipes.experiments.matrix_runs import composed
from recipes.options.demo import DemoOptions


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx2 avx512_bf16", True), ("amx_bf16 amx_tile", True), ("fpu avx2 avx512f avx512_vnni", False)],
)
def test_bf16_is_read_off_the_flags_of_the_cpu(tmp_path: Path, flags: str, expected: bool) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: bf16 avx512_bf16\nflags\t\t: {flags}\nbugs\t\t: amx_bf16\n")
    assert has_bf16(file) == expected


@pytest.mark.parametrize("demo", [TINY, PRETRAINED], ids=["tiny", "pretrained"])
@pytest.mark.parametrize("cpu_has_bf16", [True, False])
def test_a_pretrained_model_trains_in_bf16_where_the_cpu_can(
    demo: Demo, cpu_has_bf16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "has_bf16", lambda: cpu_has_bf16)
    sft, rl, _ = read_runs(demo, tmp_path)
    runs = composed([sft, rl], tmp_path)
    steps = {name: run.settings.total_steps for name, run in runs.items()}
    assert steps == {"sft": demo.sft_steps, "rank_grpo": demo.rl_steps}
    actor = runs["rank_grpo"].verl_config.actor_rollout_ref
    in_bf16 = (
        runs["sft"].verl_config.engine.mixed_precision.param_dtype == "bf16",
        actor.actor.fsdp_config.mixed_precision.param_dtype == "bf16",
        actor.ref.fsdp_config.mixed_precision.param_dtype == "bf16",
        actor.rollout.dtype == "bfloat16",
    )
    overridden = demo.is_pretrained and cpu_has_bf16
    assert any("bf16" in text for text in sft.overrides) == overridden
    assert not overridden or all(in_bf16)


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
    assert f"{PRETRAINED.sft_steps} steps of SFT on {sft.variables['TRAIN_BATCH_SIZE']} lists each" in page
    assert f"{PRETRAINED.rl_steps} steps of {batch} conversations x {lists} lists" in page
    assert f"{PRETRAINED.memory_gib:.0f} GiB of free memory and {PRETRAINED.disk_gib:.0f} GiB of disk" in page


def test_a_folder_that_yaml_would_misread_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without quotes"):
        read_runs(TINY, tmp_path / 'a"b')
