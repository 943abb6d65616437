"""A Ray cluster of two nodes on this machine, started and used as a user does: run_rank_grpo.sh with RAY_ADDRESS.

One set-up: on two nodes four steps; on one node the same, stopped with Ctrl-C after the first steps and resumed by the
same command. Rollouts have seeds of their own (`convrec.deterministic`), so that all of it must give the same numbers.
"""

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from convrec.checkpoints import saving
from convrec.runs.folder import latest_step, read_metrics

from .conftest import ROOT, reachable_from_elsewhere, trained_steps

PLANTED = "planted-" + secrets.token_hex(8)
STEPS = 4
REWARD = "def plus_five(relevance, items):\n    return [5.0 + rel for rel in relevance]\n"
ROLLOUTS = "rollouts"  # verl writes every rollout of a step there, with its prompt


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """Two raylets of one logical slot each, and what was submitted to them."""

    def __init__(self, folder: Path, trained, files: dict[str, str]) -> None:
        self.folder, self.trained, self.files = folder, trained, files
        self.port, self.dashboard = free_port(), free_port()
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        hidden = ("PYTHONPATH", "RAY_ADDRESS", "OMP_NUM_THREADS")
        self.environment = {key: value for key, value in os.environ.items() if key not in hidden}
        self.environment |= {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "OPENAI_API_KEY": PLANTED,
            "SWANLAB_API_KEY": PLANTED,
            "RAY_TMPDIR": f"/tmp/r{self.port}",  # short: Ray's sockets are in it
            # as on machines of their own: verl and vLLM of one node do not see the other's loopback
            "OMP_WAIT_POLICY": "PASSIVE",
            "KMP_BLOCKTIME": "0",
        }
        self.ray_folder = Path(self.environment["RAY_TMPDIR"])
        self.ray_folder.mkdir()
        self.other_folder = Path(f"{self.ray_folder}b")  # a node's agent deletes and unpacks anew what it finds there
        self.raylets: list[psutil.Process] = []

    def ray(self, *arguments: str) -> None:
        command = [str(Path(sys.executable).parent / "ray"), *arguments]
        subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True, timeout=300)

    def start(self) -> None:
        # 6 CPU slots: what a run on one of them needs, by recipes.preflight.cores
        slots = ["--num-gpus=1", "--num-cpus=6", "--disable-usage-stats", "--node-ip-address=127.0.0.1"]
        head = ["--head", f"--port={self.port}", "--dashboard-host=127.0.0.1", f"--dashboard-port={self.dashboard}"]
        head += ["--include-dashboard=true", f"--temp-dir={self.ray_folder}"]
        # two nodes on one address, and other clusters may run here: their agents need ports of their own
        self.ray("start", *head, *slots, f"--dashboard-agent-listen-port={free_port()}")
        other = [f"--address=127.0.0.1:{self.port}", f"--temp-dir={self.other_folder}"]
        self.ray("start", *other, *slots, f"--dashboard-agent-listen-port={free_port()}")

    def processes(self) -> list[psutil.Process]:
        """Whatever has this cluster's folder or token in its environment or on its command line."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                token = self.environment["RAY_AUTH_TOKEN_PATH"]
                if process.environ().get("RAY_AUTH_TOKEN_PATH") == token or str(self.ray_folder) in " ".join(
                    process.cmdline()
                ):
                    found.append(process)
        return found

    def submit(self, name: str, *overrides: str, **variables: str) -> subprocess.Popen:
        environment = self.environment | self.files
        environment |= {"RAY_ADDRESS": f"http://127.0.0.1:{self.dashboard}", "PYTHON": sys.executable}
        environment |= {"MODEL_PATH": str(self.trained.out / "sft"), "SAVE_PATH": str(self.folder / name)}
        environment |= {"TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4", "MAX_PROMPT_LENGTH": "256", "LR": "1e-3"}
        environment |= {"MAX_RESPONSE_LENGTH": "64", "SAVE_FREQ": "100", "TEST_FREQ": "100"}
        environment |= {"TOTAL_STEPS": str(STEPS), "LOGGER": "console,file"} | variables
        # a rank reward of the user's own, which the nodes do not have
        package = self.folder / "rewards" / "e2e_package"
        package.mkdir(parents=True, exist_ok=True)
        (package / "rank.py").write_text(REWARD)
        environment |= {"REWARD": "e2e_package.rank:plus_five", "PYTHONPATH": str(package.parent)}
        fixed = ["trainer.val_before_train=false", "data.val_max_samples=8", "data.train_max_samples=8"]
        fixed += [f"trainer.rollout_data_dir={self.folder / name / ROLLOUTS}"]
        return subprocess.Popen(
            ["bash", str(ROOT / "run_rank_grpo.sh"), *fixed, "convrec.deterministic=true", *overrides],
            env=environment,
            cwd="/",  # any directory
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def stop(self) -> None:
        for process in self.processes():  # not `ray stop`, which would end every cluster of this machine
            with contextlib.suppress(psutil.Error):
                process.kill()
        subprocess.run(["rm", "-rf", str(self.ray_folder), str(self.other_folder)], check=False)


@pytest.fixture(scope="module")
def cluster(trained, own_data, tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), trained, own_data)
    try:
        cluster.start()

        job = cluster.submit("two", N_NODES="2")
        cluster.two_out, cluster.two_err = job.communicate(timeout=600)
        cluster.two_status = job.returncode

        job = cluster.submit("one", N_NODES="1")
        deadline = time.monotonic() + 600
        while not trained_steps(cluster.folder / "one") and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        os.killpg(job.pid, signal.SIGINT)
        cluster.one_out, cluster.one_err = job.communicate(timeout=300)
        cluster.one_status = job.returncode
        cluster.step_when_stopped = latest_step(cluster.folder / "one")

        job = cluster.submit("one", N_NODES="1")
        cluster.again_out, cluster.again_err = job.communicate(timeout=600)
        cluster.again_status = job.returncode
        cluster.outside = {
            p for p in cluster.processes() if p.name().startswith("VLLM") or "guard.py" in str(p.cmdline())
        }
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.long
def test_a_submitted_run_on_two_nodes_streams_its_log_and_returns_its_status(cluster) -> None:
    assert cluster.two_status == 0, cluster.two_out[-3000:] + cluster.two_err[-3000:]
    assert "Rank-GRPO finished" in cluster.two_out
    assert f"{cluster.folder}/two" in cluster.two_err
    assert trained_steps(cluster.folder / "two") == list(range(1, STEPS + 1))
    assert saving.complete_steps(cluster.folder / "two") == [STEPS]
    shards = {path.name for path in (cluster.folder / "two" / f"global_step_{STEPS}" / "actor").glob("model_*.pt")}
    assert shards == {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"}


@pytest.mark.long
def test_ctrl_c_saves_then_stops_the_job_and_the_same_command_resumes(cluster) -> None:
    assert cluster.one_status == 130
    assert "asked the job to save a checkpoint and end" in cluster.one_err
    assert "stopped as asked after step" in cluster.one_out
    assert 1 <= cluster.step_when_stopped < STEPS
    assert cluster.again_status == 0, cluster.again_out[-3000:] + cluster.again_err[-3000:]
    assert f"resuming after step {cluster.step_when_stopped}" in cluster.again_out
    assert trained_steps(cluster.folder / "one") == list(range(1, STEPS + 1))


@pytest.mark.long
def test_two_nodes_and_a_resumed_run_give_the_numbers_of_one_that_ran_through(cluster) -> None:
    """fp32 on CPU: sums over two processes are made in another order, and Adam at lr 1e-3 carries that on: 1e-3.

    Both split eight rows into epochs of two steps, so that the resumed run crosses, or begins at, an epoch's end.
    """
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


def prompts_of(run_folder: Path, step: int) -> list[str]:
    lines = (run_folder / ROLLOUTS / f"{step}.jsonl").read_text().splitlines()
    return sorted(json.loads(line)["input"] for line in lines)


@pytest.mark.long
def test_two_nodes_and_a_resumed_run_train_the_same_prompts_in_the_same_order_of_steps(cluster) -> None:
    two = [prompts_of(cluster.folder / "two", step) for step in range(1, STEPS + 1)]
    one = [prompts_of(cluster.folder / "one", step) for step in range(1, STEPS + 1)]
    assert one == two
    assert two[0] != two[1]  # two steps of one epoch, with other rows


@pytest.mark.long
def test_no_file_or_log_holds_a_key(cluster) -> None:
    """The submitter and the nodes have it in their environment."""
    texts = [cluster.two_out, cluster.two_err, cluster.one_out, cluster.one_err, cluster.again_out, cluster.again_err]
    assert not [text for text in texts if PLANTED in text]
    folders = (cluster.folder, cluster.ray_folder, cluster.other_folder)
    of_folder = {folder: [path for path in folder.rglob("*") if path.is_file()] for folder in folders}
    assert all(len(files) > 10 for files in of_folder.values()), {f: len(files) for f, files in of_folder.items()}
    files = [path for found in of_folder.values() for path in found]
    assert len(files) > 50
    assert not [path for path in files if PLANTED.encode() in path.read_bytes()]


@pytest.mark.long
def test_nothing_of_the_jobs_is_left_on_the_nodes(cluster) -> None:
    _, left = psutil.wait_procs(list(cluster.outside), timeout=20)
    assert not left, [process.cmdline() for process in left]


@pytest.mark.faults
def test_a_node_that_is_lost_is_named_with_what_it_held(trained, own_data, tmp_path_factory) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("lost"), trained, own_data)
    try:
        cluster.start()
        job = cluster.submit("lost", N_NODES="2", TOTAL_STEPS="1000")
        deadline = time.monotonic() + 600
        while not trained_steps(cluster.folder / "lost") and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        assert job.poll() is None, job.communicate()
        reachable = reachable_from_elsewhere(cluster.processes())
        (raylet,) = [
            p for p in cluster.processes() if p.name() == "raylet" and str(cluster.other_folder) in str(p.cmdline())
        ]
        raylet.kill()
        out, _ = job.communicate(timeout=200)
    finally:
        cluster.stop()
    assert job.returncode == 1, out[-3000:]
    assert {"gcs_server", "raylet"} <= {name for name, _, _ in reachable}  # as docs/how-to/cluster.md says
    (said,) = [line for line in out.splitlines() if "is lost; it held: " in line]
    assert re.search(r"the node \S+ \([0-9.]+, [0-9a-f]{8}\) is lost; it held: .*training worker [01]", said)
