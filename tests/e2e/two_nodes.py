"""A Ray cluster of two nodes on this machine, each with a folder of its own, that asks for a token. Jobs are submitted
to it as a user does: by the recipes' scripts with RAY_ADDRESS."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil

from .conftest import ROOT

PLANTED = "planted-" + secrets.token_hex(8)
REWARD = "def plus_five(relevance, items):\n    return [5.0 + rel for rel in relevance]\n"


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
        }
        self.ray_folder = Path(self.environment["RAY_TMPDIR"])
        self.ray_folder.mkdir()
        self.other_folder = Path(f"{self.ray_folder}b")  # a node's agent deletes and unpacks anew what it finds there
        self.raylets: list[psutil.Process] = []

    def ray(self, *arguments: str) -> str:
        """Run a command of Ray's with the token. Returns what it prints."""
        done = self.try_ray(self.environment, *arguments)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def try_ray(self, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).parent / "ray"), *arguments]
        return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=300)

    @property
    def address(self) -> str:
        """Of Ray's gcs_server, which further nodes join."""
        return f"127.0.0.1:{self.port}"

    @property
    def job_address(self) -> str:
        """Of the dashboard, to which jobs are submitted."""
        return f"http://127.0.0.1:{self.dashboard}"

    def start(self) -> None:
        self.start_head()
        self.ray("start", *self.other_arguments())

    def start_head(self) -> None:
        head = ["--head", f"--port={self.port}", "--dashboard-host=127.0.0.1", f"--dashboard-port={self.dashboard}"]
        head += ["--include-dashboard=true", f"--temp-dir={self.ray_folder}"]
        self.ray("start", *head, *self.node_arguments())

    def other_arguments(self) -> list[str]:
        """Of `ray start` of the second node."""
        return [f"--address={self.address}", f"--temp-dir={self.other_folder}", *self.node_arguments()]

    def node_arguments(self) -> list[str]:
        # 8 CPU slots: a run on one of them takes 6, and its preflight may see another's actors being placed
        slots = ["--num-gpus=1", "--num-cpus=8", "--disable-usage-stats", "--node-ip-address=127.0.0.1"]
        # two nodes on one address, and other clusters may run here: their agents need ports of their own
        return [*slots, f"--dashboard-agent-listen-port={free_port()}"]

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
        """Four steps of Rank-GRPO, or what the variables say."""
        environment = {"MODEL_PATH": str(self.trained.out / "sft"), "SAVE_PATH": str(self.folder / name)}
        environment |= {"TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "4", "MAX_PROMPT_LENGTH": "256", "LR": "1e-3"}
        environment |= {"MAX_RESPONSE_LENGTH": "64", "SAVE_FREQ": "100", "TEST_FREQ": "100"}
        environment |= {"TOTAL_STEPS": "4"} | variables
        # a rank reward of the user's own, which the nodes do not have
        package = self.folder / "rewards" / "e2e_package"
        package.mkdir(parents=True, exist_ok=True)
        (package / "rank.py").write_text(REWARD)
        environment |= {"REWARD": "e2e_package.rank:plus_five", "PYTHONPATH": str(package.parent)}
        fixed = ["trainer.val_before_train=false", "data.val_max_samples=8", "data.train_max_samples=8"]
        return self.start_script("run_rank_grpo.sh", *fixed, "convrec.deterministic=true", *overrides, **environment)

    def start_script(self, script: str, *overrides: str, **variables: str) -> subprocess.Popen:
        environment = self.environment | self.files
        environment |= {"RAY_ADDRESS": self.job_address, "PYTHON": sys.executable}
        return subprocess.Popen(
            ["bash", str(ROOT / script), *overrides],
            env=environment | {"LOGGER": "console,file"} | variables,
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
