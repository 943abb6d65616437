"""The CPU slots of a run are counted before verl and TransferQueue wait for them without a limit."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from convrec.settings.run import Run
from recipes.launch.settings import compose
from recipes.preflight.cores import Slots, count_run_slots


def make_run(nodes: int, gpus: int, units: int, rollout: tuple[int, int] = (0, 0)) -> Run[Any]:
    mode = "rank_grpo_separate_async" if rollout[0] else "rank_grpo"
    config = OmegaConf.create(
        {
            "trainer": {"nnodes": nodes, "n_gpus_per_node": gpus, "v1": {"trainer_mode": mode}},
            "actor_rollout_ref": {"rollout": {"nnodes": rollout[0], "n_gpus_per_node": rollout[1]}},
            "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": units}}},
        }
    )
    return Run.from_config(config)


@pytest.mark.parametrize(("gpus", "cores"), [(1, 13), (4, 22), (8, 34)])
def test_cores_with_verls_own_eight_storage_units(gpus: int, cores: int) -> None:
    """3 per GPU, TransferQueue's 1 + 8, and 1 to place actors: as observed on 1, 4 and 8 GPUs."""
    assert count_run_slots(make_run(1, gpus, units=8)).cpus == cores


def test_sft_needs_one_for_each_gpu_and_no_others() -> None:
    sft = OmegaConf.create({"trainer": {"nnodes": 2, "n_gpus_per_node": 8}})
    assert count_run_slots(Run.from_config(sft)) == Slots([(2, 8, 8)], 0)


def test_separate_rollout_gpus_need_two_slots_each() -> None:
    assert count_run_slots(make_run(2, 8, units=2, rollout=(1, 4))) == Slots([(2, 8, 24), (1, 4, 8)], 4)


@pytest.mark.parametrize(("devices", "slots"), [("1", 16), ("6", 21)])
def test_a_local_ray_has_the_slots_whatever_the_host_has(
    devices: str, slots: int, model: Path, set_variables: Callable[[Mapping[str, str]], None]
) -> None:
    (model / "model.safetensors").touch()
    set_variables({"MODEL_PATH": str(model), "N_GPUS_PER_NODE": devices})
    assert compose("rank_grpo", []).verl_config.ray_kwargs.ray_init.num_cpus == slots
