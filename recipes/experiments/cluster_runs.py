"""Run a matrix on a cluster: each run is two jobs, its training and its evaluation.

A job is called `matrix-<digest of OUT>-<run>-train-1` or `...-evaluate-1`; the number counts the attempts. If a job
still runs when the matrix is started again, the matrix finds it by its id and waits for it. OUT is on storage that the
cluster and this machine share: checkpoints and evaluations are read from there.
"""

import re
import shlex
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Literal

from convrec.base.errors import UserError
from convrec.base.files import write_text
from convrec.base.same_request import digest
from convrec.checkpoints.saving import SHARED_SECONDS
from convrec.runs.folder import LATEST
from convrec.settings.run import Run
from recipes.cluster.job_environment import runtime_environment
from recipes.cluster.jobs import POLL_SECONDS, call_with_retries, say, submit_job, submit_training
from recipes.evaluation.options import format_arguments
from recipes.experiments.local_runs import make_evaluation_options
from recipes.experiments.matrix_runs import MatrixRun, is_finished
from recipes.experiments.tables import metrics_file
from recipes.launch.recipe import RECIPES
from recipes.preflight.cluster_findings import WAITS_VARIABLE

PATHS = ("data", "catalog", "train", "allow")  # settings of an evaluation that are paths


def count_slots(evaluate: Mapping[str, Any]) -> int:
    """Return the GPU slots that an evaluation takes on one node.

    Args:
        evaluate: the section of the matrix file.
    """
    replicas = evaluate.get("replicas", 1)
    engines = replicas if isinstance(replicas, int) else 1  # "auto": as many as fit on the GPUs of its job
    return evaluate.get("tensor_parallel", 1) * engines


def check_slots(address: str, evaluate: Mapping[str, Any]) -> None:
    """Check that some node of the cluster has enough GPU slots for an evaluation.

    Args:
        address: the cluster's http address.
        evaluate: the section of the matrix file.

    Raises:
        UserError: no node has enough.
    """
    from ray.util.state import list_nodes

    nodes = list_nodes(address=address, filters=[("state", "=", "ALIVE")], limit=1000)
    largest = max((node.resources_total.get("GPU", 0) for node in nodes), default=0)
    needed = count_slots(evaluate)
    if needed > largest:
        raise UserError(
            "matrix.too-few-slots",
            f"evaluate: tensor_parallel x replicas = {needed} GPU slots on one node, but no node has more than "
            f"{largest:g}: lower them, or start Ray with more",
        )


class MatrixJobs:
    """The jobs of one matrix on one cluster.

    Args:
        client: the result of `recipes.cluster.jobs.connect`.
        trainings: settings of each run, by name.
        out: the matrix's folder.
        evaluate: the section of the matrix file.
    """

    def __init__(self, client: Any, trainings: Mapping[str, Run[Any]], out: Path, evaluate: Mapping[str, Any]) -> None:
        self.client = client
        self.trainings = trainings
        self.out = out.absolute()
        self.evaluate = {
            name: str(Path(value).absolute()) if name in PATHS and value else value for name, value in evaluate.items()
        }
        self.stem = f"matrix-{digest(str(self.out))[:8]}"

    def train_and_evaluate(self, run: MatrixRun) -> Generator[None]:
        """Train and evaluate a run; yield while its jobs run.

        Raises:
            UserError: a job fails.
        """
        is_trained = is_finished(run, self.trainings[run.name], self.out)
        yield from self._job(run, "train", self.out / run.name / LATEST, is_trained)
        yield from self._job(run, "evaluate", metrics_file(self.out, run.name))

    def _job(
        self, run: MatrixRun, kind: Literal["train", "evaluate"], result: Path, is_done: bool = False
    ) -> Generator[None]:
        """Submit a job, or find the one that runs, and yield until it has ended and its `result` is visible here.

        is_done: do not submit.
        """
        last_job = self._find_last_job(f"{run.name}-{kind}")
        if last_job and not self._get_info(last_job).status.is_terminal():
            job = last_job
            say(f"{job} is already running")
        elif is_done:
            return
        else:
            job = f"{self.stem}-{run.name}-{kind}-{int(last_job.rpartition('-')[2] or 0) + 1}"
            self._submit(run, kind, job)
            say(f"submitted {job}")
        try:
            while not (info := self._get_info(job)).status.is_terminal():
                time.sleep(POLL_SECONDS)
                yield
        except (KeyboardInterrupt, GeneratorExit):
            say(f"{job} is still running; to stop it: ray job stop {job}")
            raise
        if info.status.name != "SUCCEEDED":
            log = self._save_log(job, info.message or "")
            raise UserError(
                "matrix.failed-job",
                f"{kind}: {info.status.name}, exit status {info.driver_exit_code}: {log}",
            )
        deadline = time.monotonic() + SHARED_SECONDS  # NFS may show it late
        while not result.exists():
            if time.monotonic() > deadline:
                raise UserError(
                    "matrix.out-not-shared",
                    f"{kind}: the job succeeded, but {result} does not exist here: put out={self.out} on storage that "
                    "this machine shares with the cluster",
                )
            time.sleep(POLL_SECONDS)

    def _get_info(self, job: str) -> Any:
        return call_with_retries(lambda: self.client.get_job_info(job), job)

    def _find_last_job(self, name: str) -> str:
        """Return the job of the last attempt; "" if there was none."""
        attempt = re.compile(rf"{self.stem}-{re.escape(name)}-(\d+)")
        infos = call_with_retries(self.client.list_jobs, "the list of jobs")
        matches = [attempt.fullmatch(info.submission_id or "") for info in infos]
        attempts = {int(match[1]): match[0] for match in matches if match}
        return attempts[max(attempts)] if attempts else ""

    def _submit(self, run: MatrixRun, kind: str, job: str) -> None:
        recipe = RECIPES[run.recipe]
        training = self.trainings[run.name]
        runtime_env = runtime_environment(recipe, training, run.make_environment(self.out), run.overrides)
        if kind == "train":
            submit_training(self.client, recipe, run.overrides, runtime_env, job, **{WAITS_VARIABLE: "1"})
            return
        arguments = format_arguments({"replicas": 1} | make_evaluation_options(run, self.out, self.evaluate))
        submit_job(
            self.client,
            entrypoint=shlex.join(["python", "-m", "recipes", "evaluate", "--overwrite", *arguments]),
            runtime_env=runtime_env,
            submission_id=job,
            entrypoint_num_gpus=count_slots(self.evaluate),
        )

    def _save_log(self, job: str, message: str) -> str:
        """Save a failed job's log, or Ray's message if it is empty, in OUT; return its last line and its path."""
        log = call_with_retries(lambda: self.client.get_job_logs(job), job) or message
        file = self.out / "logs" / f"{job}.log"
        write_text(file, log)
        # A recipe's last line names a log on its own machine; the line before it has the error.
        lines = [line for line in log.strip().splitlines() if not line.startswith("full log: ")]
        return f"{(lines or ['no log'])[-1]}\n  log: {file}"
