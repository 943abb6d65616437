"""The launch files of docs/examples say what this version of the project understands."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from recipes.launch.recipe import RANK_GRPO
from recipes.launch.variables import VARIABLES

ROOT = Path(__file__).resolve().parents[1]
SLURM = ROOT / "docs" / "examples" / "slurm.sh"
# sbatch's options in use, with what their values look like
SBATCH = {
    "job-name": r"[\w-]+",
    "nodes": r"\d+",
    "ntasks-per-node": "1",  # one raylet a node
    "gpus-per-node": r"\d+",
    "cpus-per-task": r"\d+",
    "exclusive": "",
    "time": r"\d+:\d\d:\d\d",
    "signal": r"B:USR1@\d+",
    "open-mode": "append",
    "requeue": "",  # preempted, it goes on where it was
}
FILES = dict.fromkeys(("TRAIN_FILE", "VAL_FILE", "CATALOG_FILE", "MODEL_PATH"), "x")


def test_slurm_options_are_sbatchs_own() -> None:
    subprocess.run(["bash", "-n", str(SLURM)], check=True)
    options = re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", SLURM.read_text(), re.MULTILINE)
    assert {name for name, _ in options} == set(SBATCH)
    assert all(re.fullmatch(SBATCH[name], value) for name, value in options), options


@contextmanager
def slurm_job(
    tmp_path: Path, addresses: str, alive: int | None = 2, others: str = "exec sleep 20", **more: str
) -> Iterator[subprocess.Popen]:
    """The script with SLURM, Ray and the recipe played by shell scripts that note how they are called.

    alive: nodes that have joined; None: nobody answers.
    """
    bin_folder = tmp_path / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    commands = {
        "scontrol": "printf 'node1\\nnode2\\n'",
        "srun": 'echo "srun $@ cpus $SRUN_CPUS_PER_TASK" >> calls; case "$*" in *hostname*) '
        + f"printf '{addresses}'"
        + f";; *--address*--block) {others};; *--block) exec sleep 20;; esac",
        "ray": "exit 0",
        "python": f'case "$*" in *secrets*) echo token;; *) {"sleep 600" if alive is None else f"echo {alive}"};; esac',
        "timeout": 'shift 3; exec "$(PATH=${PATH#*:} command -v timeout)" '
        + ('1 "$@"' if alive is None else '30 "$@"'),  # a second is enough where nobody answers
    }
    for name, text in commands.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (bin_folder / name).chmod(0o755)
    (tmp_path / "run_rank_grpo.sh").write_text(
        'stat -c %a "$RAY_AUTH_TOKEN_PATH" > mode\n'
        'echo "$RAY_ADDRESS $N_NODES $N_GPUS_PER_NODE $*" > new\nmv new started\n'
        'while [ ! -e "$SAVE_PATH/stop" ]; do sleep 0.05; done\nsleep 0.3\nexit 7\n'
    )
    variables = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node[1-2]"}
    variables |= {"SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8", "SAVE_PATH": str(tmp_path / "run")}
    variables |= {"SLURM_CPUS_PER_TASK": "64"} | more
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    job = subprocess.Popen(
        ["bash", str(SLURM), "a=b"],
        env=environment | FILES | variables,
        cwd=tmp_path,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield job
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)  # the raylets, which SLURM would end


def test_slurm_starts_no_ray_on_the_loopback(tmp_path: Path) -> None:
    with slurm_job(tmp_path, "127.0.1.1\\n\\n") as job:
        _, error = job.communicate(timeout=20)
    assert job.returncode != 0
    assert "node1 has no address but the loopback (127.0.1.1" in error
    assert "ray start" not in (tmp_path / "calls").read_text()
    assert not list(tmp_path.glob(".ray-token*"))


def test_slurm_gives_up_on_a_missing_node_and_leaves_no_token(tmp_path: Path) -> None:
    with slurm_job(tmp_path, "10.0.0.1\\n", alive=1, NODES_SECONDS="1") as job:
        assert job.wait(60) == 1
    assert job.stderr
    error = job.stderr.read()
    assert "error: 1 of 2 nodes joined Ray after 1 s: see the words of srun and ray above" in error
    assert not list(tmp_path.glob(".ray-token*"))
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert ".ray-token-*" in ignored


@pytest.mark.parametrize("alive", [1, None])
def test_slurm_ends_at_once_where_ray_does_not_start_on_a_node(tmp_path: Path, alive: int | None) -> None:
    """None: as with a head that has died, for which ray.init waits for minutes."""
    with slurm_job(tmp_path, "10.0.0.1\n", alive=alive, others="exit 3") as job:
        assert job.wait(60) == 1
    assert job.stderr
    assert "error: a step that starts Ray has ended: see the words of srun and ray above" in job.stderr.read()


def test_slurm_job_ends_soon_after_a_node_is_lost_in_sft(tmp_path: Path) -> None:
    """As with a head that has died: who follows the run's log would wait for five minutes."""
    (tmp_path / "run_sft.sh").write_text("echo $$ > started\nexec sleep 600\n")
    sft = {"RECIPE": "run_sft.sh", "CATALOG_FILE": "", "LOST_SECONDS": "1"}
    others = "while [ ! -s started ]; do sleep 0.05; done; exit 3"
    with slurm_job(tmp_path, "10.0.0.1\n", others=others, **sft) as job:
        assert job.wait(60) == 1
        recipe, deadline = Path("/proc", (tmp_path / "started").read_text().strip(), "cmdline"), time.monotonic() + 20
        with suppress(OSError):  # gone while it is read
            while recipe.read_bytes():  # a zombie has no command line
                assert time.monotonic() < deadline
                time.sleep(0.05)
    assert job.stderr
    assert "error: a step that starts Ray has ended: see the words of srun and ray above" in job.stderr.read()


def test_slurm_starts_ray_on_every_node_and_forwards_its_signal(tmp_path: Path) -> None:
    # as `hostname --ip-address` and `--all-ip-addresses` answer on a Debian host
    with slurm_job(tmp_path, "127.0.1.1\\nfe80::1 10.0.0.1 172.17.0.1 \\n") as job:
        deadline = time.monotonic() + 20
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "started").read_text() == "http://10.0.0.1:8265 2 8 a=b\n"
        assert (tmp_path / "mode").read_text() == "600\n"
        job.send_signal(signal.SIGUSR1)
        assert job.wait(20) == 7  # the run's own
    assert not list(tmp_path.glob(".ray-token*"))
    calls = (tmp_path / "calls").read_text()
    ray = "env --unset=ROCR_VISIBLE_DEVICES ray"  # SLURM sets it beside CUDA_VISIBLE_DEVICES; verl refuses both
    assert f"--nodelist=node1 {ray} start --head --node-ip-address=10.0.0.1" in calls
    assert all(line.endswith(" cpus 64") for line in calls.splitlines()[1:])
    one_each = "--nodes=1 --ntasks=1 --ntasks-per-node=1 --exclude=node1 --kill-on-bad-exit=1"
    assert f"{one_each} {ray} start --address=10.0.0.1:6379" in calls


def test_slurm_takes_the_packages_from_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apptainer = tmp_path / "image" / "apptainer"
    apptainer.parent.mkdir()
    apptainer.write_text(
        '#!/bin/bash\necho "$@" >> inside\n[ "$1 $2 $3" = "exec --nv --bind" ] && shift 5\nexec "$@"\n'
    )
    apptainer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apptainer.parent}{os.pathsep}{os.environ['PATH']}")
    with slurm_job(tmp_path, "10.0.0.1\\n", IMAGE="convrec.sif") as job:
        deadline = time.monotonic() + 20
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(20) == 7
    calls = (tmp_path / "calls").read_text()
    in_image = f"apptainer exec --nv --bind {tmp_path} convrec.sif env --unset=ROCR_VISIBLE_DEVICES ray start"
    assert f"--nodelist=node1 {in_image} --head" in calls
    assert f"{in_image} --address=10.0.0.1:6379" in calls
    assert "run_rank_grpo.sh a=b" in (tmp_path / "inside").read_text()


def test_kuberay_job_runs_one_recipe_on_nodes_that_fit_it() -> None:
    text = (ROOT / "docs" / "examples" / "kuberay.yaml").read_text()
    assert "kubectl replace --force -f docs/examples/kuberay.yaml" in text  # applying it again does nothing
    job, policy = yaml.safe_load_all(text)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == metadata.version("ray")
    assert cluster["authOptions"] == {"mode": "token"}
    variables = yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]
    known = {variable.name for variable in VARIABLES if variable.collect_keys(RANK_GRPO)}
    assert set(variables) - known == {"VERL_USE_EXTERNAL_MODULES"}
    assert all(isinstance(value, str) for value in variables.values())  # Ray refuses numbers
    (script,) = re.findall(r"bash (run_\w+\.sh)", job["spec"]["entrypoint"])
    assert (ROOT / script).exists()

    (workers,) = cluster["workerGroupSpecs"]
    assert int(variables["N_NODES"]) == 1 + workers["replicas"]
    (selected,) = policy["spec"]["podSelector"]["matchLabels"].items()
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"][0] == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}  # every port
    (submitter, operator), (dashboard,) = policy["spec"]["ingress"][1]["from"], policy["spec"]["ingress"][1]["ports"]
    assert submitter == {"podSelector": {"matchLabels": {"job-name": job["metadata"]["name"]}}}
    assert "namespaceSelector" in operator
    assert dashboard["port"] == 8265
    for group in (cluster["headGroupSpec"], workers):
        assert selected in group["template"]["metadata"]["labels"].items()
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == variables["N_GPUS_PER_NODE"]
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
        assert "/dev/shm" in mounted.values()
        paths = [value for name, value in variables.items() if name.endswith(("_FILE", "_PATH"))]
        assert all(path.startswith(mounted["training"] + "/") for path in paths)


@pytest.mark.parametrize(("status", "seen"), [(0, 0), (1, 1), (2, 0), (75, 75), (130, 0), (137, 137)])
def test_kuberay_tries_again_what_another_try_can_mend(tmp_path: Path, status: int, seen: int) -> None:
    """Its controller looks at whether the Ray job has failed, which any exit status but 0 is."""
    job = next(yaml.safe_load_all((ROOT / "docs" / "examples" / "kuberay.yaml").read_text()))
    (tmp_path / "run_rank_grpo.sh").write_text(f"exit {status}")
    entrypoint = job["spec"]["entrypoint"].replace("/opt/convrec", str(tmp_path))
    done = subprocess.run(entrypoint, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == seen
    assert (done.stdout == f"exit status {status}: not tried again\n") == (status in (2, 130))
