"""What a matrix does on a cluster: its tasks as jobs, side by side as far as the cluster's slots go.

A run is two jobs, its training and its evaluation: `matrix-<of OUT>-<run>-train-1` and `...-evaluate-1`; the number is
that of the attempt. A job that still runs when the matrix is started again is known by its id and waited for. OUT is on
storage that the cluster and this machine share: what is finished, and what the tables have, is read there.
"""

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig

from convrec.checkpoints.saving import SHARED_SECONDS
from convrec.errors import UserError
from convrec.files import write_text
from convrec.progress import Progress
from convrec.runs.folder import LATEST
from convrec.same_request import digest
from recipes.cluster.client import POLL_SECONDS, persist, submit_job
from recipes.cluster.job_environment import check_for_cluster, runtime_environment
from recipes.cluster.jobs import say, submit_training
from recipes.experiments.local_runs import evaluation_of
from recipes.experiments.matrix_runs import MatrixRun
from recipes.experiments.tables import metrics_file
from recipes.launch.recipe import RECIPES
from recipes.preflight.cluster_findings import WAITS_VARIABLE, slot_findings
from recipes.preflight.cores import needed_slots
from recipes.preflight.finding import stop_on_failure

DEVICES = "N_GPUS_PER_NODE"
PATHS = ("data", "catalog", "train", "allow")  # of an evaluation
NOT_STARTED = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"  # Ray gives up on a job whose slots were not free for 15 minutes


@dataclass(frozen=True)
class Task:
    """after: names of the tasks that must have succeeded. gpus, cpus: slots that it takes."""

    run: MatrixRun
    kind: Literal["train", "evaluate"]
    after: tuple[str, ...] = ()
    gpus: int = 0
    cpus: int = 0

    @property
    def name(self) -> str:
        return f"{self.run.name}-{self.kind}"


def nodes_of(address: str) -> list[dict[str, Any]]:
    """The living nodes as `recipes.preflight.node.slots_of_cluster` has them, with all slots free."""
    from ray.util.state import list_nodes

    nodes = []
    for node in list_nodes(address=address, filters=[("state", "=", "ALIVE")], limit=1000):
        gpus, cpus = (node.resources_total.get(name, 0) for name in ("GPU", "CPU"))
        where = f"{node.node_ip} ({node.node_id[:8]})"
        nodes.append({"where": where, "total": gpus, "free": gpus, "cpus_total": cpus, "cpus_free": cpus})
    return nodes


def tasks_of(
    runs: Sequence[MatrixRun],
    configs: Mapping[str, DictConfig],
    evaluate: Mapping[str, Any],
    nodes: Sequence[dict[str, Any]],
) -> list[Task]:
    """Of each run its training, once its start is trained, and its evaluation, once its start is evaluated.

    A start that is not among the runs is there already. Raises UserError for what is of no use on a cluster, or has no
    room on the empty one, and where N_GPUS_PER_NODE is not said and a node has several.
    """
    most = max((node["total"] for node in nodes), default=0)
    replicas = evaluate.get("replicas", 1)  # "auto": what the GPUs of its job are enough for
    evaluation_gpus = evaluate.get("tensor_parallel", 1) * (replicas if isinstance(replicas, int) else 1)
    if evaluation_gpus > most:
        raise UserError(f"evaluate: it needs {evaluation_gpus} GPU slots of one node; the nodes have up to {most:g}")
    names = {run.name for run in runs}
    tasks = []
    for run in runs:
        config = configs[run.name]
        if most > 1 and not {**os.environ, **run.variables}.get(DEVICES, "").strip():
            raise UserError(
                f"{run.name}: set {DEVICES} (variables, or the environment): nodes have up to {most:g} GPUs"
            )
        try:
            check_for_cluster(RECIPES[run.recipe], config, run.overrides)
            stop_on_failure(slot_findings(config, nodes))
        except UserError as error:
            raise UserError(f"{run.name}: {error}") from None
        starts = [run.start] if run.start in names else []
        trained = tuple(f"{start}-train" for start in starts)
        needed = needed_slots(config)
        tasks.append(Task(run, "train", trained, needed.gpus, needed.cpus))
        evaluated = (f"{run.name}-train", *(f"{start}-evaluate" for start in starts))
        tasks.append(Task(run, "evaluate", evaluated, evaluation_gpus))
    return tasks


def fits(task: Task, running: Sequence[Task], nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the slots of all nodes together are enough for it beside those that run. Where they lie does not matter
    here: a training waits for its own (WAITS_VARIABLE), and Ray starts an evaluation when it has them."""
    tasks = [*running, task]
    has_gpus = sum(one.gpus for one in tasks) <= sum(node["total"] for node in nodes)
    return has_gpus and sum(one.cpus for one in tasks) <= sum(node["cpus_total"] for node in nodes)


class MatrixJobs:
    """The jobs of one matrix on one cluster: submitted, found again, and what became of them.

    Args:
        client: of `recipes.cluster.client.connect`.
        configs: run -> its settings.
        evaluate: the section of the matrix file.
    """

    def __init__(self, client: Any, configs: Mapping[str, DictConfig], out: Path, evaluate: Mapping[str, Any]) -> None:
        self.client, self.configs = client, configs
        self.out = out.absolute()
        self.evaluate = {
            name: str(Path(value).absolute()) if name in PATHS and value else value for name, value in evaluate.items()
        }
        self.stem = f"matrix-{digest(str(self.out))[:8]}-"
        self.attempts: dict[str, int] = {}  # task -> the number of its last job
        self.running: dict[str, str] = {}  # task -> its job
        self.failures: list[str] = []  # of each task that failed: what happened, and where its log is

    def find(self, tasks: Sequence[Task]) -> None:
        """Know the jobs that these tasks have had, and which of them have not ended."""
        names = {task.name for task in tasks}
        for info in persist(self.client.list_jobs, "the list of jobs"):
            named = re.fullmatch(rf"{self.stem}(.+)-(\d+)", info.submission_id or "")
            if named and named[1] in names:
                self.attempts[named[1]] = max(int(named[2]), self.attempts.get(named[1], 0))
                if not info.status.is_terminal():
                    self.running[named[1]] = info.submission_id
                    say(f"{named[1]} runs already: {info.submission_id}")

    def begin(self, task: Task) -> None:
        self.attempts[task.name] = self.attempts.get(task.name, 0) + 1
        job = f"{self.stem}{task.name}-{self.attempts[task.name]}"
        recipe, config = RECIPES[task.run.recipe], self.configs[task.run.name]
        runtime_env = runtime_environment(recipe, config, task.run.environment(self.out), task.run.overrides)
        if task.kind == "train":
            submit_training(self.client, recipe, task.run.overrides, runtime_env, job, **{WAITS_VARIABLE: "1"})
        else:
            arguments = json.dumps(evaluation_of(task.run, self.out, self.evaluate), default=str)
            submit_job(
                self.client,
                entrypoint=shlex.join(["python", "-m", "recipes", "evaluation-job", arguments]),
                runtime_env=runtime_env,
                submission_id=job,
                entrypoint_num_gpus=task.gpus,
            )
        self.running[task.name] = job
        say(f"{task.name}: {job}")

    def outcome(self, task: Task) -> bool | None:
        """True when it has succeeded and its files are seen here, False when it failed, None while it runs."""
        job = self.running[task.name]
        info = persist(lambda: self.client.get_job_info(job), job)
        if not info.status.is_terminal():
            return None
        if task.kind == "evaluate" and info.error_type == NOT_STARTED:
            self.begin(task)
            return None
        del self.running[task.name]
        if info.status.name != "SUCCEEDED":
            what = f"{info.status.name}, exit status {info.driver_exit_code}: {self._kept_log(job, info.message or '')}"
        elif self._is_seen(task):
            say(f"{task.name} is done")
            return True
        else:
            what = f"it ended well, and {self.out} here has nothing of it: out is no storage shared with the cluster"
        self.failures.append(f"{task.name} failed: {what}")
        say(self.failures[-1])
        return False

    def _is_seen(self, task: Task) -> bool:
        """Whether its files are here; NFS may show them late."""
        checkpoint, metrics = self.out / task.run.name / LATEST, metrics_file(self.out, task.run.name)
        deadline = time.monotonic() + SHARED_SECONDS
        while not (checkpoint if task.kind == "train" else metrics).exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _kept_log(self, job: str, message: str) -> str:
        """Its log's last words on why it ended, and the file here that has it all; Ray's own message without a log."""
        log = persist(lambda: self.client.get_job_logs(job), job) or message
        file = self.out / "logs" / f"{job}.log"
        write_text(file, log)
        said = [line for line in log.strip().splitlines() if not line.startswith("full log: ")]  # a recipe's last line
        return f"{(said or ['no log'])[-1]}\n  log: {file}"


def train_and_evaluate(
    jobs: MatrixJobs,
    tasks: Sequence[Task],
    finished: Sequence[MatrixRun],
    nodes: Sequence[Mapping[str, Any]],
    most: int,
    after_each: Callable[[MatrixRun, bool], None],
) -> list[str]:
    """Submit each task when what it needs has succeeded and there is room for it beside those that run, and wait for
    all. Returns a line for each that failed or, as what it needs has failed, was not started.

    finished: the runs that need no training. most: jobs at once. after_each: called with the run of each task that has
    succeeded, and whether it was the training. Whatever ends it earlier, Ctrl-C too, leaves the jobs running, says so,
    and is raised.
    """
    jobs.find(tasks)
    done = {f"{run.name}-train" for run in finished} - jobs.running.keys()
    waiting = [task for task in tasks if task.name not in done | jobs.running.keys()]

    def note() -> str:
        return ", ".join(jobs.running)

    with Progress(total=len(tasks), initial=len(done), desc="jobs", unit="job", note=note) as bar:
        try:
            while True:
                for task in list(waiting):
                    running = [other for other in tasks if other.name in jobs.running]
                    if done.issuperset(task.after) and len(running) < most and fits(task, running, nodes):
                        jobs.begin(task)
                        waiting.remove(task)
                if not jobs.running:
                    break
                time.sleep(POLL_SECONDS)
                for task in [other for other in tasks if other.name in jobs.running]:
                    if (succeeded := jobs.outcome(task)) is not None:
                        bar.update()
                    if succeeded:
                        done.add(task.name)
                        after_each(task.run, task.kind == "train")
        except BaseException:  # Ctrl-C, or a cluster that is out of reach
            for job in jobs.running.values():
                say(f"{job} goes on; to end it: ray job stop {job}")
            raise
    return jobs.failures + [f"{task.name} was not started, as what it needs failed" for task in waiting]
