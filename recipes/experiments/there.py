"""What a matrix does on a cluster: its runs as jobs, side by side as far as its slots go."""

from collections.abc import Callable, Mapping, Sequence

from omegaconf import DictConfig

from convrec.progress import Progress
from recipes.cluster.client import POLL_SECONDS
from recipes.cluster.job_environment import refuse_relative_paths
from recipes.cluster.jobs import reward_of
from recipes.experiments.amount import Work
from recipes.experiments.matrix_file import Run
from recipes.experiments.matrix_jobs import MatrixJobs
from recipes.experiments.needs import TRAIN
from recipes.experiments.schedule import Node, Schedule, Task, has_room, run_all
from recipes.launch.recipe import RECIPES


def check(runs: Sequence[Run], configs: Mapping[str, DictConfig]) -> dict[str, str]:
    """The rank reward of each run. Raises UserError for an override or a reward that is of no use on a cluster."""
    for run in runs:
        refuse_relative_paths(RECIPES[run.recipe], run.overrides)
    return {run.name: reward_of(configs[run.name]) for run in runs}


def schedule_of(tasks: Sequence[Task], works: Sequence[Work], nodes: Sequence[Node], parallel: int | None) -> Schedule:
    """The tasks, less the trainings of finished runs.

    parallel: at most so many at once; None: as many as there is room for, one where the cluster has no GPU slots.
    """
    most = parallel or (len(tasks) if any(node.gpus for node in nodes) else 1)

    def room(running: Sequence[Task], task: Task) -> bool:
        return len(running) < most and has_room(nodes, running, task)

    return Schedule(tasks, room, [work.run.name + TRAIN for work in works if work.is_finished])


def train_and_evaluate(jobs: MatrixJobs, schedule: Schedule, after_each: Callable[[Run, bool], None]) -> list[str]:
    """Submit what the schedule has, wait for it, and return a line for each task that failed or was left out.

    after_each: called with the run of each task that has succeeded, and whether it was the training.
    Whatever ends it earlier, Ctrl-C too, leaves the jobs running, says so, and is raised.
    """
    finished = len(schedule.names("done"))

    def note() -> str:
        return ", ".join(schedule.names("running"))

    with Progress(total=len(schedule.tasks), initial=finished, desc="jobs", unit="job", note=note) as bar:

        def outcome(name: str, job: str) -> bool | None:
            succeeded = jobs.outcome(name, job)
            if succeeded is not None:
                bar.update()
            if succeeded:
                after_each(jobs.run_of(name), name.endswith(TRAIN))
            return succeeded

        try:
            found = {name: job for name, job in jobs.find().items() if name in schedule.tasks}
            run_all(schedule, jobs.begin, outcome, found, POLL_SECONDS)
        except BaseException:  # Ctrl-C, or a cluster that is out of reach
            for job in jobs.running.values():
                jobs.say(f"{job} goes on; to end it: ray job stop {job}")
            raise
    left_out = [f"{name} was not started, as what it needs failed" for name in schedule.names("left out")]
    return [*(f"{name} failed: {why}" for name, why in jobs.failures.items()), *left_out]
