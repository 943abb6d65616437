"""A run without a GPU takes bf16 if its processor is faster in it, unless a setting says otherwise."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from convrec.runs.folder import LATEST, MANIFEST
from convrec.settings.run import AUTO, Run
from recipes.launch.recipe import RECIPES
from recipes.launch.settings import compose_files, save_config
from recipes.preflight import precision
from recipes.preflight.precision import BF16, FP32, MIN_HIDDEN, MIN_SPEEDUP, compare_seconds

ROLLOUT = "actor_rollout_ref.rollout.dtype"
REFERENCE = "actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype"


def open_run(recipe: str, folder: Path, *overrides: str) -> Run:
    """A run of the recipe on a CPU, before its checks."""
    arguments = [f"trainer.default_local_dir={folder}", *overrides]
    return Run.from_config(compose_files(RECIPES[recipe], arguments, [f"{RECIPES[recipe].host_group}=cpu"], {}))


@pytest.fixture
def slow_or_fast(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds by dtype, of a processor that has bf16."""
    seconds = {FP32: 1.0, BF16: 0.5}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "amx_bf16": True})
    monkeypatch.setattr(precision, "measure_mlp_seconds", lambda hidden, intermediate, dtype: seconds[dtype])
    return seconds


@pytest.mark.parametrize(("bf16_seconds", "dtype"), [(0.5, BF16), (1 / MIN_SPEEDUP, BF16), (0.9, FP32), (7.0, FP32)])
def test_bf16_must_be_faster_by_a_margin(bf16_seconds: float, dtype: str) -> None:
    assert compare_seconds(1.0, bf16_seconds).dtype == dtype


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("bf16_seconds", "dtypes"), [(0.5, (BF16, "bfloat16")), (0.9, (FP32, "float32"))])
def test_passes_and_rollout_take_what_is_faster(
    recipe: str, bf16_seconds: float, dtypes: tuple[str, str], slow_or_fast: dict[str, float], tmp_path: Path
) -> None:
    slow_or_fast[BF16] = bf16_seconds
    run = open_run(recipe, tmp_path)
    assert OmegaConf.select(run.verl_config, run.passes_dtype_key) == AUTO
    precision.set_precision(run)
    assert OmegaConf.select(run.verl_config, run.passes_dtype_key) == dtypes[0]
    if recipe != "sft":
        assert (OmegaConf.select(run.verl_config, ROLLOUT), OmegaConf.select(run.verl_config, REFERENCE)) == dtypes[
            ::-1
        ]
    assert run.precision.startswith(f"{dtypes[0]}: ")
    assert f"{bf16_seconds:.2f}" in run.precision


def test_a_small_model_is_in_fp32_whatever_a_measurement_says(
    slow_or_fast: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for hidden, dtype in ((MIN_HIDDEN - 1, FP32), (MIN_HIDDEN, BF16)):
        monkeypatch.setattr(precision, "_measured_shape", lambda model, hidden=hidden: (hidden, 4 * hidden))
        assert precision.measure_precision("any").dtype == dtype


def test_settings_win_and_the_rollout_follows_the_passes(slow_or_fast: dict[str, float], tmp_path: Path) -> None:
    passes = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"
    run = open_run("rank_grpo", tmp_path, f"{passes}=fp32")
    precision.set_precision(run)
    assert (OmegaConf.select(run.verl_config, passes), run.rollout_memory.dtype) == (FP32, "float32")
    assert run.precision == f"fp32: set by {passes}"
    run = open_run("rank_grpo", tmp_path, f"{ROLLOUT}=float32")
    precision.set_precision(run)
    assert (OmegaConf.select(run.verl_config, passes), run.rollout_memory.dtype) == (BF16, "float32")


def test_a_run_that_is_resumed_keeps_its_dtype(slow_or_fast: dict[str, float], tmp_path: Path) -> None:
    started = open_run("sft", tmp_path, "engine.mixed_precision.param_dtype=fp32")
    save_config(started.verl_config, tmp_path)
    (tmp_path / "global_step_5").mkdir()
    (tmp_path / "global_step_5" / MANIFEST).write_text("{}")
    (tmp_path / LATEST).write_text("5")
    resumed = open_run("sft", tmp_path)
    precision.set_precision(resumed)
    assert resumed.precision == "fp32: the dtype that this run started with"


def test_this_machine_is_measured() -> None:
    """A processor without bf16 instructions computes bf16 in fp32, which is slower."""
    seconds = {dtype: precision.measure_mlp_seconds(256, 512, dtype) for dtype in (FP32, BF16)}
    assert min(seconds.values()) > 0
    if not precision.has_bf16_instructions():
        assert compare_seconds(seconds[FP32], seconds[BF16]).dtype == FP32


def test_without_instructions_for_bf16_passes_are_in_fp32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "amx_bf16": False})
    run = open_run("rank_grpo", tmp_path)
    precision.set_precision(run)
    assert run.precision == "fp32: this processor has no instructions for bf16"
    assert run.rollout_is_exact
