"""A run whose processes are killed: it ends by itself, says why, leaves nothing behind, and the same command resumes.

While it lives, nothing of it listens beyond this machine's loopback, and what listens there lets no other user in. The
three starts also train what the demo does not: GSPO; asynchronously; two updates a batch under the constraint of the
catalog, resuming what was trained asynchronously; all on data of one's own, without years, and with checkpoints that
are merged when they are read.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from transformers import AutoModelForCausalLM

from convrec.checkpoints.models import resolve_model
from convrec.runs.folder import latest_step, read_metrics
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.single import evaluate
from tests.strangers import try_as_stranger

from .conftest import (
    OF_THE_PASS,
    ROOT,
    descendants,
    killed_on_error,
    processes_named,
    reachable_from_elsewhere,
    wait_for,
)

pytestmark = pytest.mark.long

BOUND = 120  # seconds; 5-25 were seen, on busy cores
DRIVER = "the driver"


@dataclass
class Killed:
    """What one start left behind."""

    begun_at: int
    status: int
    stderr: str
    reachable: list[tuple[str, str, int]]
    ways_in: list[str]
    left: list[list[str]]
    leavings: list[str]
    rows: list[dict[str, float]]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("deaths") / "run"


@pytest.fixture(scope="module")
def killed(trained, own_data, run_folder) -> dict[str, Killed]:
    """A run of GSPO, and two starts of one of Rank-GRPO, the second resuming what was killed."""
    gspo = run_folder.with_name("gspo")
    return {
        "VLLM::EngineCore": train_and_kill(trained, own_data, gspo, "VLLM::EngineCore", ALGORITHM="gspo"),
        "raylet": train_and_kill(trained, own_data, run_folder, "raylet", "+scale=separate_async_cpu"),
        DRIVER: train_and_kill(trained, own_data, run_folder, DRIVER, MU="2", REWARD="log_decay", CONSTRAINED="1"),
    }


def begin(trained, own_data, run_folder, *overrides: str, **variables: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHON": sys.executable, "SAVE_PATH": str(run_folder), **own_data}
    environment |= {"MODEL_PATH": str(trained.out / "sft"), "TRAIN_BATCH_SIZE": "8", "ROLLOUT_N": "4", "LR": "1e-4"}
    environment |= {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "64", "TOTAL_STEPS": "1000", "SAVE_KEEP": "2"}
    environment |= {"TOTAL_EPOCHS": "1000", "TEST_FREQ": "-1", "SAVE_FREQ": "1", **variables}
    merged_when_read = "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]"
    return subprocess.Popen(
        ["bash", str(ROOT / "run_rank_grpo.sh"), "trainer.val_before_train=false", merged_when_read, *overrides],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def train_and_kill(trained, own_data, run_folder, victim: str, *overrides: str, **variables: str) -> Killed:
    """Kill it two checkpoints later."""
    begun_at = latest_step(run_folder)
    run = begin(trained, own_data, run_folder, *overrides, **variables)
    with killed_on_error(run):
        wait_for(run, lambda: latest_step(run_folder) >= begun_at + 2)
        processes = [psutil.Process(run.pid), *descendants(run)]
        (folder,) = {process.environ().get("CONVREC_RUN_TMP") for process in processes_named(run, "gcs_server")}
        segments = set().union(*(shared_memory_of(process) for process in processes))
        reachable = reachable_from_elsewhere(processes)
        ways_in = ways_in_for_a_stranger(processes, run_folder.with_name("it-ran"))
        start = time.monotonic()
        (run if victim == DRIVER else processes_named(run, victim)[0]).kill()
        _, stderr = run.communicate(timeout=BOUND)
    _, left = psutil.wait_procs(processes, timeout=max(1.0, BOUND - (time.monotonic() - start)))
    leavings = [*segments & set(os.listdir("/dev/shm")), *([folder] if os.path.exists(folder) else [])]
    rows = [row for row in read_metrics(run_folder) if row["step"] > begun_at and "rank_grpo/return@1" in row]
    left_commands = [process.cmdline() for process in left]
    return Killed(begun_at, run.returncode, stderr, reachable, ways_in, left_commands, leavings, rows)


def ways_in_for_a_stranger(processes: list[psutil.Process], proof: Path) -> list[str]:
    """How another user got in at what listens on the loopback, with the name of the process; and the proof, if made."""
    owners = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    address = f"{connection.laddr.ip.removeprefix('::ffff:')}:{connection.laddr.port}"
                    owners[f"tcp://{address}"] = process.name()
    assert len(owners) > 10
    found = [f"{owners[address]}: {way}" for address, way in try_as_stranger(owners, proof)]
    return found + [path.name for path in [proof] if path.exists()]


@pytest.mark.parametrize(
    ("victim", "status", "reason"),
    [
        ("VLLM::EngineCore", 1, "is gone (killed, or out of memory)"),
        ("raylet", 1, " is gone "),  # the driver may still notice what else is gone, or be ended by Ray at once
        (DRIVER, -signal.SIGKILL, "its process is gone without a word"),
    ],
)
def test_killed_process_ends_run_with_a_reason_and_no_leftovers(killed, victim, status, reason):
    run = killed[victim]
    assert run.status == status, run.stderr
    assert reason in run.stderr
    assert "the same command resumes" in run.stderr.lower()
    assert not run.left
    assert not run.leavings


def test_server_killed_before_it_has_weights_ends_the_run(trained, own_data, tmp_path):
    """As Ray kills what is too large for the memory; verl's training worker would wait for the server without limit."""
    run = begin(trained, own_data, tmp_path / "run")
    with killed_on_error(run):
        wait_for(run, lambda: processes_named(run, "VLLM::EngineCore"))
        (worker,) = processes_named(run, "ray::WorkerDict")
        worker.suspend()  # it can send nothing before the server is dead
        log = tmp_path / "run" / "run.log"
        wait_for(run, lambda: "checkpoint engine manager initialized" in log.read_text(errors="replace"))
        (server,) = processes_named(run, "ray::CPUHttpServer")
        server.kill()
        with contextlib.suppress(psutil.NoSuchProcess):  # the run may have ended it
            worker.resume()
        _, stderr = run.communicate(timeout=BOUND)
    assert run.returncode == 1
    assert "the vLLM server 0.0 is gone (killed, or out of memory)" in stderr
    assert "the same command resumes" in stderr


def test_the_same_command_resumes(killed):
    first, second = killed["raylet"], killed[DRIVER]
    assert first.begun_at == 0
    assert second.begun_at >= 2
    assert f"resuming after step {second.begun_at}" in second.stderr
    assert second.rows[0]["step"] == second.begun_at + 1
    assert " -> log_decay\n" in second.stderr  # another reward, which is allowed and said


def test_nothing_of_a_run_listens_beyond_the_loopback(killed):
    assert not [reachable for run in killed.values() for reachable in run.reachable]


def test_another_user_of_the_machine_is_not_let_in(killed):
    """Figures of Ray's agent, monitor and dashboard process may be read: docs/how-to/security.md says so."""
    ways = {way for run in killed.values() for way in run.ways_in}
    assert ways <= {"ray::DashboardAgent: HTTP", "python: HTTP"}, ways


def test_each_algorithm_trains(killed):
    gspo, asynchronous, two_updates = (run.rows for run in killed.values())
    assert max(row["actor/grad_norm"] for row in gspo) > 0
    assert all("actor/pg_loss" in row for row in gspo)
    assert max(row["actor/grad_norm"] for row in asynchronous) > 0
    for row in two_updates:
        assert OF_THE_PASS in row  # mu > 1 needs the pass for old log-probs
        assert row["actor/rollout_diff_max"] < 1e-3  # of the constrained policy; 2e-6 was seen
        assert (row["rank_grpo/catalog_hit_ratio"], row["rank_grpo/num_items"]) == (1.0, 20.0)
        assert row["rank_grpo/duplicates"] == row["rank_grpo/truncated"] == 0.0
    assert max(row["actor/ratio_max/all"] for row in two_updates) > 1.0  # the second update of a batch is off-policy
    assert two_updates[-1]["actor/kl"] > 0


def test_shards_trained_on_undated_data_are_merged_and_evaluated(trained, own_data, killed, run_folder, tmp_path):
    before = AutoModelForCausalLM.from_pretrained(resolve_model(trained.out / "sft"), dtype="bfloat16").state_dict()
    after = AutoModelForCausalLM.from_pretrained(resolve_model(run_folder), dtype="float32").state_dict()
    moved = max((after[name] - before[name].float()).abs().max().item() for name in before)
    # each of the steps, two of them doubled, moves a weight by about the learning rate; the merger rounds to bf16
    assert 1e-4 < moved < 1e-4 * 2 * latest_step(run_folder) + 1e-2
    options = EvaluationOptions(
        model=str(run_folder),
        data=str(Path(own_data["TRAIN_FILE"]).with_name("test.parquet")),
        catalog=own_data["CATALOG_FILE"],
        out=str(tmp_path / "evaluation"),
        train=own_data["TRAIN_FILE"],
        max_prompt_length=256,
        max_response_length=64,
        limit=64,
        progress=False,
    )
    metrics = evaluate(options)
    results = metrics["results"]["paper"]
    assert results["model"]["n"] == 64
    assert results["model"]["catalog_hit_ratio"] > 0.1  # it writes years, which are taken off
    assert 0 < results["popularity"]["ndcg@20"]["mean"] < 1


def shared_memory_of(process: psutil.Process) -> set[str]:
    """Names in /dev/shm that it maps."""
    with contextlib.suppress(psutil.Error):
        paths = {m.path for m in process.memory_maps() if m.path.startswith("/dev/shm/")}
        return {path.removeprefix("/dev/shm/") for path in paths if not path.endswith("(deleted)")}
    return set()
