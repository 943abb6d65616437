"""The jobs that the runs of a matrix are on a Ray cluster.

A run is two jobs, its training and its evaluation: `matrix-<of OUT>-<run>-train-1` and `...-evaluate-1`; the number is
that of the attempt. A job that still runs when the matrix is started again is known by its id and waited for. OUT is on
storage that the cluster and this machine share: what is finished, and what the tables have, is read there.
"""

import hashlib
import json
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convrec.checkpoints.saving import SHARED_SECONDS
from convrec.errors import UserError
from convrec.files import write_text
from convrec.runs.folder import latest_step
from recipes.cluster.client import persist, submit_job
from recipes.cluster.job_environment import runtime_environment
from recipes.cluster.jobs import submit_training
from recipes.experiments.here import evaluation_of
from recipes.experiments.matrix_file import Run
from recipes.experiments.needs import EVALUATE, TRAIN
from recipes.experiments.schedule import Task
from recipes.launch.recipe import RECIPES

PATHS = ("data", "catalog", "train", "allow")  # of an evaluation
EXISTS = "already exists"  # what Ray says of a submission id that it has had


class MatrixJobs:
    """The jobs of one matrix on one cluster: submitted, found again, and what became of them.

    Args:
        client: of `recipes.cluster.client.connect`.
        runs: with N_GPUS_PER_NODE (`needs.with_devices`).
        evaluate: the section of the matrix file.
        rewards: run -> its rank reward (`recipes.cluster.jobs.reward_of`).
        say: called with a line for each job that begins or ends.
    """

    def __init__(
        self,
        client: Any,
        runs: Sequence[Run],
        out: Path,
        evaluate: Mapping[str, Any],
        rewards: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self.client, self.rewards, self.say = client, rewards, say
        self.runs = {run.name: run for run in runs}
        self.out = out.absolute()
        self.evaluate = {
            name: str(Path(value).absolute()) if name in PATHS and value else value for name, value in evaluate.items()
        }
        self.stem = f"matrix-{hashlib.sha256(str(self.out).encode()).hexdigest()[:8]}-"
        self.attempts: dict[str, int] = {}  # task -> the number of its last job
        self.running: dict[str, str] = {}  # task -> its job
        self.ended_at: dict[str, float] = {}  # of jobs whose files are not seen here yet
        self.failures: dict[str, str] = {}  # task -> what happened, and where its log is

    def find(self) -> dict[str, str]:
        """Task -> its job, of the jobs of an earlier start of this matrix that have not ended."""
        for info in persist(self.client.list_jobs, "the list of jobs"):
            named = re.fullmatch(rf"{self.stem}(.+)-(\d+)", info.submission_id or "")
            if named:
                self.attempts[named[1]] = max(int(named[2]), self.attempts.get(named[1], 0))
                if not info.status.is_terminal():
                    self.running[named[1]] = info.submission_id
                    self.say(f"{named[1]} runs already: {info.submission_id}")
        return dict(self.running)

    def begin(self, task: Task) -> str:
        """Submit it. Returns the job's id."""
        self.attempts[task.name] = self.attempts.get(task.name, 0) + 1
        job = f"{self.stem}{task.name}-{self.attempts[task.name]}"
        what = f"{task.name}: {job}"
        try:
            self._submit(task, job)
        except UserError as error:
            if EXISTS not in str(error):
                raise
            what = f"{task.name} was submitted by another start of this matrix at the same time: {job}"
        self.running[task.name] = job
        self.say(what)
        return job

    def _submit(self, task: Task, job: str) -> None:
        run = self.run_of(task.name)
        recipe, environment = RECIPES[run.recipe], run.environment(self.out)
        if task.name.endswith(TRAIN):
            submit_training(self.client, recipe, run.overrides, environment, job, reward=self.rewards[run.name])
            return
        arguments = evaluation_of(run, self.out, self.evaluate)
        text = json.dumps({name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()})
        submit_job(
            self.client,
            entrypoint=shlex.join(["python", "-m", "recipes.experiments.evaluation_job", text]),
            runtime_env=runtime_environment(recipe, environment),
            submission_id=job,
            entrypoint_num_gpus=sum(number * gpus for number, gpus in task.groups) or None,
        )

    def outcome(self, name: str, job: str) -> bool | None:
        """Of a task's job: True when it has succeeded and its files are seen here, False when it failed, else None."""
        info = persist(lambda: self.client.get_job_info(job), job)
        if not info.status.is_terminal():
            return None
        if info.status.name == "SUCCEEDED":
            if self._is_seen(name):
                del self.running[name]
                self.say(f"{name} is done")
                return True
            if time.monotonic() - self.ended_at.setdefault(name, time.monotonic()) < SHARED_SECONDS:
                return None
            what = f"it ended well, and {self.out} here has nothing of it: out is no storage shared with the cluster"
        else:
            last_line = self._kept_log(job, info.message or "")
            what = f"{info.status.name}, exit status {info.driver_exit_code}: {last_line}"
        del self.running[name]
        self.failures[name] = what
        self.say(f"{name} failed: {what}")
        return False

    def _is_seen(self, name: str) -> bool:
        run = self.run_of(name)
        if name.endswith(TRAIN):
            return latest_step(self.out / run.name) > 0
        return (self.out / "evaluation" / run.name / "metrics.json").exists()

    def _kept_log(self, job: str, message: str) -> str:
        """Its log's last words on why it ended, and the file here that has it all; Ray's own message without a log."""
        log = persist(lambda: self.client.get_job_logs(job), job) or message
        file = self.out / "logs" / f"{job}.log"
        write_text(file, log)
        said = [line for line in log.strip().splitlines() if not line.startswith("full log: ")]  # a recipe's last line
        return f"{(said or ['no log'])[-1]}\n  log: {file}"

    def run_of(self, task: str) -> Run:
        return self.runs[task.removesuffix(TRAIN if task.endswith(TRAIN) else EVALUATE)]
