"""A Ray cluster of two nodes on this machine, started and used as a user does: run_rank_grpo.sh with RAY_ADDRESS.

One set-up: four steps on two nodes, and the same on one. Rollouts have seeds of their own (`convrec.deterministic`), so
that both must give the same numbers. Ctrl-C and resuming are SFT's, in test_sft_cluster.py.
"""

import contextlib
import re

import psutil
import pytest

from convrec.checkpoints import saving
from convrec.runs.folder import read_metrics
from convrec.runs.guard_process import NO_WORKER_SECONDS

from .conftest import reachable_from_elsewhere, trained_steps, wait_for
from .two_nodes import PLANTED, Cluster

STEPS = 4


@pytest.fixture(scope="module")
def cluster(nodes):
    job = nodes.submit("two", N_NODES="2")
    nodes.two_out, nodes.two_err = job.communicate(timeout=600)
    nodes.two_status = job.returncode

    job = nodes.submit("one", N_NODES="1")
    nodes.one_out, nodes.one_err = job.communicate(timeout=600)
    nodes.one_status = job.returncode
    nodes.outside = set()
    for process in nodes.processes():
        with contextlib.suppress(psutil.Error):  # what ends with the job
            if process.name().startswith("VLLM") or "guard_process.py" in str(process.cmdline()):
                nodes.outside.add(process)
    return nodes


@pytest.mark.long
def test_two_node_job_streams_its_log_and_returns_its_status(cluster) -> None:
    assert cluster.two_status == 0, cluster.two_out[-3000:] + cluster.two_err[-3000:]
    assert "Rank-GRPO finished" in cluster.two_out
    assert f"{cluster.folder}/two" in cluster.two_err
    assert trained_steps(cluster.folder / "two") == list(range(1, STEPS + 1))
    assert saving.complete_steps(cluster.folder / "two") == [STEPS]
    shards = {path.name for path in (cluster.folder / "two" / f"global_step_{STEPS}" / "actor").glob("model_*.pt")}
    assert shards == {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"}


@pytest.mark.long
def test_two_nodes_give_the_numbers_of_one(cluster) -> None:
    """fp32 on CPU: sums over two processes are made in another order, and Adam at lr 1e-3 carries that on: 1e-3."""
    assert cluster.one_status == 0, cluster.one_out[-3000:] + cluster.one_err[-3000:]
    two = {row["step"]: row for row in read_metrics(cluster.folder / "two") if "actor/policy_loss" in row}
    one = {row["step"]: row for row in read_metrics(cluster.folder / "one") if "actor/policy_loss" in row}
    names = ["actor/policy_loss", "actor/grad_norm", "actor/kl", "actor/entropy", "rank_grpo/dcg", "rank_grpo/return@1"]
    names += ["critic/advantages/mean", "critic/advantages/max", "critic/advantages/min", "response_length/mean"]
    for step in range(1, STEPS + 1):
        for name in names:
            assert one[step][name] == pytest.approx(two[step][name], rel=1e-3, abs=1e-4), (step, name)
    # there is something to be equal: some lists earn, and not all those of a prompt the same
    for name in ("rank_grpo/dcg", "critic/advantages/max", "actor/grad_norm"):
        assert max(row[name] for row in two.values()) > 0, name


@pytest.mark.long
def test_the_users_rank_reward_travels_with_the_job(cluster) -> None:
    for name in ("one", "two"):
        returns = [row["rank_grpo/return@1"] for row in read_metrics(cluster.folder / name) if "rank_grpo/dcg" in row]
        assert len(returns) == STEPS
        assert all(5 <= value <= 6 for value in returns)


@pytest.mark.long
def test_no_file_or_log_holds_a_key(cluster) -> None:
    """The submitter and the nodes have it in their environment."""
    texts = [cluster.two_out, cluster.two_err, cluster.one_out, cluster.one_err]
    assert not [text for text in texts if PLANTED in text]
    folders = (cluster.folder, cluster.ray_folder, cluster.other_folder)
    of_folder = {folder: [path for path in folder.rglob("*") if path.is_file()] for folder in folders}
    assert all(len(files) > 10 for files in of_folder.values()), {f: len(files) for f, files in of_folder.items()}
    files = [path for found in of_folder.values() for path in found]
    assert len(files) > 50
    for path in files:
        with contextlib.suppress(FileNotFoundError):  # Ray, which is still running, writes some anew
            assert PLANTED.encode() not in path.read_bytes(), path


@pytest.mark.long
def test_nothing_of_the_jobs_is_left_on_the_nodes(cluster) -> None:
    _, left = psutil.wait_procs(list(cluster.outside), timeout=NO_WORKER_SECONDS + 20)
    assert not left, [process.cmdline() for process in left]


@pytest.mark.faults
def test_a_node_that_is_lost_is_named_with_what_it_held(trained, own_data, tmp_path_factory) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("lost"), trained, own_data)
    try:
        cluster.start()
        job = cluster.submit("lost", N_NODES="2", TOTAL_STEPS="1000")
        wait_for(job, lambda: trained_steps(cluster.folder / "lost"))
        reachable = reachable_from_elsewhere(cluster.processes())
        (raylet,) = [
            p for p in cluster.processes() if p.name() == "raylet" and str(cluster.other_folder) in str(p.cmdline())
        ]
        raylet.kill()
        out, _ = job.communicate(timeout=200)
    finally:
        cluster.stop()
    assert job.returncode == 1, out[-3000:]
    assert {"gcs_server", "raylet"} <= {name for name, _, _ in reachable}  # as docs/how-to/security.md says
    (said,) = [line for line in out.splitlines() if "is lost; it held: " in line]
    assert re.search(r"the node \S+ \([0-9.]+, [0-9a-f]{8}\) is lost; it held: .*training worker [01]", said)
