"""A run of a matrix on a cluster: two jobs, its training and its evaluation, submitted and waited for.

A job is called `matrix-<of OUT>-<run>-train-1` or `...-evaluate-1`; the number is that of the attempt. One that still
runs when the matrix is started again is known by its id and waited for. OUT is on storage that the cluster and this
machine share: what is finished, and what the tables have, is read there.
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
from recipes.cluster.jobs import POLL_SECONDS, persist, say, submit_job, submit_training
from recipes.evaluation.options import format_arguments
from recipes.experiments.local_runs import make_evaluation_options
from recipes.experiments.matrix_runs import MatrixRun, is_finished
from recipes.experiments.tables import metrics_file
from recipes.launch.recipe import RECIPES
from recipes.preflight.cluster_findings import WAITS_VARIABLE

PATHS = ("data", "catalog", "train", "allow")  # of an evaluation


def count_slots(evaluate: Mapping[str, Any]) -> int:
    """GPU slots of a node that an evaluation takes."""
    replicas = evaluate.get("replicas", 1)
    engines = replicas if isinstance(replicas, int) else 1  # "auto": what the GPUs of its job are enough for
    return evaluate.get("tensor_parallel", 1) * engines


def check_slots(address: str, evaluate: Mapping[str, Any]) -> None:
    """Raise UserError for an evaluation that needs more GPU slots than each of the cluster's nodes has."""
    from ray.util.state import list_nodes

    nodes = list_nodes(address=address, filters=[("state", "=", "ALIVE")], limit=1000)
    most = max((node.resources_total.get("GPU", 0) for node in nodes), default=0)
    needed = count_slots(evaluate)
    if needed > most:
        raise UserError(
            f"evaluate: tensor_parallel x replicas = {needed} GPU slots of one node, and no node has more than "
            f"{most:g}: lower them, or start Ray with more"
        )


class MatrixJobs:
    """The jobs of one matrix on one cluster.

    Args:
        client: of `recipes.cluster.jobs.connect`.
        trainings: of the runs, by name.
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
        """Yields while its jobs run. Raises UserError when one fails."""
        is_trained = is_finished(run, self.trainings[run.name], self.out)
        yield from self._job(run, "train", self.out / run.name / LATEST, is_trained)
        yield from self._job(run, "evaluate", metrics_file(self.out, run.name))

    def _job(
        self, run: MatrixRun, kind: Literal["train", "evaluate"], result: Path, is_done: bool = False
    ) -> Generator[None]:
        """The job, until it has ended and its `result` is seen here; left alone where it is done and none runs."""
        last = self._last(f"{run.name}-{kind}")
        if last and not persist(lambda: self.client.get_job_info(last), last).status.is_terminal():
            job = last
            say(f"{job} runs already")
        elif is_done:
            return
        else:
            job = f"{self.stem}-{run.name}-{kind}-{int(last.rpartition('-')[2] or 0) + 1}"
            self._submit(run, kind, job)
            say(f"{job} is submitted")
        try:
            while not (info := persist(lambda: self.client.get_job_info(job), job)).status.is_terminal():
                time.sleep(POLL_SECONDS)
                yield
        except (KeyboardInterrupt, GeneratorExit):
            say(f"{job} goes on; to end it: ray job stop {job}")
            raise
        if info.status.name != "SUCCEEDED":
            log = self._kept_log(job, info.message or "")
            raise UserError(f"{kind}: {info.status.name}, exit status {info.driver_exit_code}: {log}")
        deadline = time.monotonic() + SHARED_SECONDS  # NFS may show it late
        while not result.exists():
            if time.monotonic() > deadline:
                raise UserError(
                    f"{kind}: it ended well, and {self.out} here has nothing of it: out is no storage shared with the "
                    "cluster"
                )
            time.sleep(POLL_SECONDS)

    def _last(self, name: str) -> str:
        """The job of the last attempt, "" where there was none."""
        attempt = re.compile(rf"{self.stem}-{re.escape(name)}-(\d+)")
        infos = persist(self.client.list_jobs, "the list of jobs")
        matches = [attempt.fullmatch(info.submission_id or "") for info in infos]
        attempts = {int(match[1]): match[0] for match in matches if match}
        return attempts[max(attempts)] if attempts else ""

    def _submit(self, run: MatrixRun, kind: str, job: str) -> None:
        recipe = RECIPES[run.recipe]
        training = self.trainings[run.name]
        runtime_env = runtime_environment(recipe, training, run.environment(self.out), run.overrides)
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

    def _kept_log(self, job: str, message: str) -> str:
        """Its log's last words on why it ended, and the file here that has it all; Ray's own message without a log."""
        log = persist(lambda: self.client.get_job_logs(job), job) or message
        file = self.out / "logs" / f"{job}.log"
        write_text(file, log)
        said = [line for line in log.strip().splitlines() if not line.startswith("full log: ")]  # a recipe's last line
        return f"{(said or ['no log'])[-1]}\n  log: {file}"
