"""Each thing that can be wrong before a run: found, named with where it is, and with its mend."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from transformers import Qwen2Config

from convrec.errors import UserError
from recipes import doctor, estimate, node
from recipes.variables import VARIABLES

GIB = 2**30
FITTING = {"verl": "0.9.1", "ray": "2.60.0", "torch": "2.13.0+cpu", "transformers": "5.10.4"}


def config(**trainer: Any) -> Any:
    base = {"nnodes": 1, "n_gpus_per_node": 1, "device": "cuda", "logger": ["console"], "save_freq": 100}
    rollout = {"gpu_memory_utilization": 0.5, "free_cache_engine": True, "n": 8, "dtype": "bfloat16"}
    actor = {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 32768, "use_kl_loss": True}
    return OmegaConf.create(
        {
            "trainer": base | {"total_training_steps": 200} | trainer,
            "data": {"max_prompt_length": 2048, "max_response_length": 1024, "train_batch_size": 48},
            "actor_rollout_ref": {
                "rollout": rollout | {"tensor_model_parallel_size": 1},
                "actor": actor,
                "model": {
                    "path": "somewhere",
                    "enable_gradient_checkpointing": True,
                    "lora_rank": 0,
                    "use_fused_kernels": False,
                },
            },
        }
    )


def machine(**changes: Any) -> dict[str, Any]:
    good = {
        "where": "node-a",
        "versions": dict(FITTING),
        "digest": "abc",
        "source": "/code",
        "unreadable": {},
        "save_problem": "",
        "disk_free": 500 * GIB,
        "shm_free": 8 * GIB,
        "memory_available": 64 * GIB,
        "device_memory": 80 * GIB,
        "open_files": 65536,
        "missing_registrations": [],
    }
    return good | changes


def only(findings: list[doctor.Finding], status: str) -> doctor.Finding:
    (found,) = [finding for finding in findings if finding.status == status]
    assert found.mend
    return found


def test_versions_that_do_not_fit_are_named_with_what_needs_them() -> None:
    needed = {"verl": ["ray>=2.41", "transformers<5.11", "pytest; extra == 'test'"], "vllm": ["torch==2.13.0"]}
    there = {"ray": "2.60.0", "transformers": "5.12.0", "torch": "2.13.0+cpu"}
    found = doctor.version_findings(lambda name: needed.get(name, []), there.get, "driver")
    assert only(found, "failure").what == "transformers 5.12.0, verl needs <5.11"
    fitting = there | {"transformers": "5.10.4"}
    assert doctor.version_findings(lambda name: needed.get(name, []), fitting.get, "driver")[0].status == "ok"
    missing = {key: value for key, value in fitting.items() if key != "torch"}
    found = doctor.version_findings(lambda name: needed.get(name, []), missing.get, "driver")
    assert "torch missing" in only(found, "failure").what


def test_a_tracker_without_its_key_is_a_failure_and_offline_needs_none() -> None:
    tracked = config(logger=["console", "swanlab"])
    found = only(doctor.key_findings(tracked, {}), "failure")
    assert "SWANLAB_API_KEY is not set" in found.what
    secret = doctor.key_findings(tracked, {"SWANLAB_API_KEY": "a-secret"})
    assert [finding.status for finding in secret] == ["ok"]
    assert "a-secret" not in str(secret)
    assert doctor.key_findings(tracked, {"SWANLAB_MODE": "offline"}) == []


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        ({"unreadable": {"/data/train.parquet": "not there"}}, "node-b", "/data/train.parquet: not there"),
        ({"save_problem": "SAVE_PATH=/runs: / may not be written to"}, "node-b", "may not be written to"),
        ({"digest": "xyz", "source": "/old"}, "node-b", "convrec xyz from /old, the driver has abc"),
        ({"versions": FITTING | {"ray": "2.50.0"}}, "node-b", "ray 2.50.0, the driver has 2.60.0"),
        ({"missing_registrations": ["policy_loss"]}, "node-b", "lacks policy_loss"),
        ({"shm_free": 64 * 2**20}, "node-b", "/dev/shm has 0.06 GiB free"),
    ],
)
def test_what_is_wrong_on_one_node_is_named_with_the_node(change: dict[str, Any], where: str, what: str) -> None:
    own = machine()
    found = only(doctor.node_findings(config(), own, [own, machine(where="node-b", **change)]), "failure")
    assert found.where == where
    assert what in found.what


def test_few_open_files_are_a_warning_and_all_well_is_one_line() -> None:
    own = machine()
    assert "1024" in only(doctor.node_findings(config(), own, [machine(open_files=1024)]), "warning").what
    assert [finding.status for finding in doctor.node_findings(config(), own, [own])] == ["ok"]


def slots(*pairs: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"where": f"node-{i}", "total": total, "free": free} for i, (total, free) in enumerate(pairs)]


def test_devices_that_are_not_there_and_those_another_job_holds() -> None:
    wanted = config(nnodes=2, n_gpus_per_node=4)
    assert [f.status for f in doctor.slot_findings(wanted, slots((4, 4), (0, 0), (8, 5)))] == ["ok"]
    found = only(doctor.slot_findings(wanted, slots((8, 8), (2, 2))), "failure")
    assert "N_NODES=2 with N_GPUS_PER_NODE=4" in found.what
    assert "another job holds them" in only(doctor.slot_findings(wanted, slots((4, 4), (4, 1))), "failure").what
    assert "no node" in only(doctor.slot_findings(wanted, []), "failure").what


@pytest.mark.parametrize(("free", "status"), [(5, "failure"), (10, "warning"), (20, "ok")])
def test_disk(monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    """0.5e9 parameters x 16 bytes = 7.45 GiB a checkpoint; 200 steps with SAVE_FREQ=100 are two."""
    monkeypatch.setattr(estimate, "model_size", lambda path: estimate.ModelSize(500_000_000, 24, 896, 151_936))
    found = [
        f for f in doctor.size_findings(config(), "rank_grpo", [machine(disk_free=free * GIB)]) if f.check == "disk"
    ]
    assert [f.status for f in found] == [status]
    assert "7.45 GiB" in found[0].what


def test_memory_of_training_and_the_share_of_vllm() -> None:
    """0.5e9 parameters on one device: state 20 x 0.5e9 = 9.3 GiB; T = 32768 tokens: activations 32768 x 896 x 24 x 2 =
    1.3 GiB, logits 32768 x 151936 x 10 = 46.4 GiB; 2 GiB besides: 59.0 GiB."""
    half_b = estimate.ModelSize(500_000_000, 24, 896, 151_936)
    needs = estimate.needs(config(), half_b)
    assert needs.training / GIB == pytest.approx(9.31 + 1.31 + 46.37 + 2, abs=0.05)
    assert needs.checkpoint == 8_000_000_000
    assert [f.status for f in doctor.memory_findings(config(), needs, [machine()])] == ["ok"]
    tight = doctor.memory_findings(config(), needs, [machine(device_memory=60 * GIB)])
    assert "ppo_max_token_len_per_gpu" in only(tight, "warning").mend
    assert (
        "59.0 GiB needed"
        in only(doctor.memory_findings(config(), needs, [machine(device_memory=24 * GIB)]), "failure").what
    )

    lora = config()
    lora.actor_rollout_ref.model.lora_rank = 32
    assert needs.training - estimate.needs(lora, half_b).training == 16 * 500_000_000  # 20 - 4 bytes each

    fused = config()
    fused.actor_rollout_ref.model.use_fused_kernels = True  # 512 of the 32768 tokens have logits at a time
    assert needs.training - estimate.needs(fused, half_b).training == (32768 - 512) * 151_936 * 10

    seventy_b = estimate.needs(config(n_gpus_per_node=64), estimate.ModelSize(70_000_000_000, 80, 8192, 151_936))
    assert seventy_b.rollout_weights == 140_000_000_000
    found = doctor.memory_findings(config(), seventy_b, [machine()])
    assert any("vLLM's share is 40.0 GiB" in f.what and "TENSOR_PARALLEL" in f.mend for f in found)


def test_a_host_without_gpus_is_measured_by_its_own_memory() -> None:
    needs = estimate.needs(config(device="cpu"), estimate.ModelSize(500_000_000, 24, 896, 151_936))
    found = doctor.memory_findings(config(device="cpu"), needs, [machine(memory_available=16 * GIB)])
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
    assert estimate.model_size(str(tiny)) == estimate.ModelSize(512 * 32 + 2 * layer + 32, 2, 32, 512)


@pytest.fixture
def variables(tiny: Path, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("SWANLAB_API_KEY", raising=False)
    given = {"TRAIN_FILE": sample / "train.parquet", "VAL_FILE": sample / "validation.parquet"}
    given |= {"CATALOG_FILE": sample / "catalog.parquet", "MODEL_PATH": tiny, "SAVE_PATH": tmp_path / "run"}
    given |= {"TRAIN_BATCH_SIZE": 4, "MAX_PROMPT_LENGTH": 256, "MAX_RESPONSE_LENGTH": 64}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["doctor", *arguments])
    status = doctor.main()
    return status, capsys.readouterr().out


def test_the_command_on_this_machine(
    variables: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, out = run(capsys, monkeypatch, "--json")
    result = json.loads(out)
    failures = [finding for finding in result["findings"] if finding["status"] == "failure"]
    assert (status, result["ok"]) == ((0, True) if not failures else (1, False))
    assert not [finding for finding in failures if finding["check"] not in ("memory", "disk")]  # a machine may be small
    assert not (tmp_path / "run").exists()

    monkeypatch.setenv("LOGGER", "console,wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    status, out = run(capsys, monkeypatch)
    assert status == 1
    assert "failure  keys: wandb: LOGGER has wandb, and WANDB_API_KEY is not set\n         -> set WANDB_API_KEY" in out


def test_bad_data_is_a_finding_too(
    variables: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAIN_FILE", "/not/there.parquet")
    status, out = run(capsys, monkeypatch)
    assert status == 1
    assert "TRAIN_FILE=/not/there.parquet: no such file" in out


def test_a_cluster_that_does_not_answer_is_a_finding(
    variables: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    status, out = run(capsys, monkeypatch, "--json")
    assert status == 1
    assert "no answer" in json.loads(out)["findings"][0]["what"]


def test_a_run_folder_that_may_not_be_written_to_and_files_that_are_not_there(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    seen = node.report(["/not/there.parquet"], "organisation/model", str(blocker / "run"))
    assert seen["unreadable"] == {"/not/there.parquet": "not there"}
    assert "is no folder" in seen["save_problem"]
    fine = node.report([], "organisation/model", str(tmp_path / "new" / "run"))
    assert fine["save_problem"] == ""
    assert fine["disk_free"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    if os.geteuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        assert "may not be written to" in node.report([], "a/b", str(tmp_path / "run"))["save_problem"]
        tmp_path.chmod(0o700)


def test_a_port_that_cannot_be_reached_is_named_with_both_ends() -> None:
    here, closed = node.Reach("127.0.0.1"), node.Reach("127.0.0.1")
    addresses = {"node-b": here.address(), "node-c": closed.address()}
    closed.server.close()
    unreachable = here.unreachable(addresses)
    assert list(unreachable) == ["node-c"]
    found = only(doctor.port_findings({"node-a": unreachable, "node-b": {}}), "failure")
    assert (found.check, found.where) == ("ports", "node-a")
    assert found.what == f"cannot connect to node-c: 127.0.0.1:{addresses['node-c'][1]} Connection refused"
    (fine,) = doctor.port_findings({"node-a": {}, "node-b": {}})
    assert (fine.status, fine.where) == ("ok", "node-a, node-b")


def test_failures_stop_a_recipe_with_what_and_mend_and_warnings_are_said() -> None:
    warning = doctor.Finding("memory", "warning", "node-a", "tight", "more GPUs")
    assert doctor.stop_on_failure([warning]) == ["node-a: tight (more GPUs)"]
    failure = doctor.Finding("disk", "failure", "node-b", "full", "make room")
    with pytest.raises(UserError, match=r"node-b: full\. Mend: make room"):
        doctor.stop_on_failure([warning, failure])
