"""One run of a recipe: settings, checks, the run folder, training, and the report of its end.

    run
      compose                        settings: conf/, variables, overrides
      guard_run                      end all processes of the run, however this process ends
        recipe.check                 settings and data
        hold                         lock the run folder against other starts
          choose_start               start, resume, or find the run finished
          check_before_training      checkpoints, packages, this machine
          train                      the log, the progress bar, verl's trainer

ENDINGS lists the ways in which a run can end, with their exit statuses.
"""

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from convrec.base.errors import NoProgress, ProcessLost, UserError, is_lost_process, one_line
from convrec.base.files import names_full_disk
from convrec.checkpoints import saving
from convrec.cpu.openmp import use_intel_openmp
from convrec.runs import guard, memory, supervisor
from convrec.runs.folder import hold, lacks_validation, latest_step, next_metrics_file
from convrec.runs.starts import note_start
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from recipes.launch import dry_run, ray_training, same_run
from recipes.launch.console import Console, progress, redirect_output
from recipes.launch.environment import exit_if_ray_hangs, make_process_environment, set_up_process
from recipes.launch.recipe import Recipe
from recipes.launch.settings import compose, find_secrets, save_config
from recipes.launch.variables import find_misspelt_variables
from recipes.preflight.cores import uses_ray

TRAINED = 0
FAILED = 1
BAD_INPUT = 2


@dataclass
class Attempt:
    """The state of one start of a run, for the report of its end.

    Attributes:
        console: the terminal.
        start: time.monotonic() at the start.
        run_folder: None until the settings have been read.
        log_file: None until training begins.
    """

    console: Console
    start: float = field(default_factory=time.monotonic)
    run_folder: Path | None = None
    log_file: Path | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start


def run(recipe: Recipe, arguments: list[str]) -> int:
    """Compose, check and train a run.

    Args:
        recipe: the recipe.
        arguments: overrides of the command line; with a flag of `dry_run.FLAGS` nothing is trained.

    Returns:
        The exit status: 0 trained (or already finished), 1 failed, 2 bad input, 75 hung, 130 stopped.
    """
    answer_status = dry_run.answer(recipe, arguments)
    if answer_status is not None:
        return answer_status
    attempt = Attempt(Console())
    set_up_process()
    if recipe.is_sft:  # it trains in this process; those of Ray are not affected
        use_intel_openmp()
    say_warnings(attempt.console, find_misspelt_variables(os.environ))  # first, because they may explain an error
    try:
        training = compose(recipe.name, arguments)
        attempt.run_folder = training.folder
        attempt.console.secrets = find_secrets(training.verl_config)
        with guard_run(recipe, training):
            warnings = recipe.check(training)
            with hold(training.folder) as lock_warnings:
                supervisor.note(run=str(training.folder))
                status = run_in_folder(attempt, recipe, arguments, training, [*warnings, *lock_warnings])
    except (UserError, OSError) as error:
        status = report_end(attempt, error)
    return exit_if_ray_hangs(status)


@contextlib.contextmanager
def guard_run(recipe: Recipe, training: Run[TrainingConfig]) -> Iterator[None]:
    """End all processes that the run starts, and remove its temporary files, when the block or this process ends.
     This sets the run's variables in `os.environ`. For a run with Ray it also starts to import the packages of its
    workers.

    Args:
        recipe: the recipe.
        training: the run.
    """
    os.environ.update(make_process_environment(training.uses_gpu))
    log_file = training.folder / "run.log"
    message = (
        f"{recipe.describe_method(training)}: its process is gone without a word (killed, or a process of Ray "
        f"died); all processes that it started have been ended. {log_file} may have the reason. The same command "
        "resumes."
    )
    with guard.guarded(message) as temporary:
        supervisor.note(temporary=str(temporary))
        if uses_ray(training):
            ray_training.preload_workers(training.verl_config)
        with memory.watched(temporary, advise_on_memory(training), lambda text: supervisor.note(memory=text)):
            yield


def advise_on_memory(training: Run[TrainingConfig]) -> str:
    """Return the settings to change for a run that needs more host memory than there is."""
    if training.uses_gpu:
        return "Lower N_GPUS_PER_NODE, or use a node with more memory or a smaller model"
    length = "MAX_LENGTH" if training.is_sft else "MAX_RESPONSE_LENGTH"
    return f"Lower {training.micro_batch_key}, TRAIN_BATCH_SIZE or {length}, or use a smaller model"


def run_in_folder(
    attempt: Attempt, recipe: Recipe, arguments: list[str], training: Run[TrainingConfig], warnings: list[str]
) -> int:
    """Resume, check and train in the run folder, which this process has locked.

    Args:
        attempt: this start.
        recipe: the recipe.
        arguments: overrides of the command line.
        training: the run.
        warnings: warnings to print before those of the folder.

    Returns:
        The exit status.

    Raises:
        UserError: the run cannot train.
        OSError: a file cannot be written before training.
    """
    console = attempt.console
    start = choose_start(training)
    warnings = [*warnings, *start.warnings]
    if start.is_finished:
        say_warnings(console, warnings)
        console.say(
            f"{attempt.run_folder} already has its {start.step} steps. To train longer, raise TOTAL_STEPS. To start "
            "again, choose another SAVE_PATH or move this folder away."
        )
        return TRAINED
    say_warnings(console, [*warnings, *check_before_training(training, arguments)])
    return train(attempt, recipe, training, start.step)


@dataclass(frozen=True)
class StartPoint:
    """Where a start of a run begins.

    Attributes:
        step: the checkpoint to resume from; 0 for a new run.
        is_finished: nothing is left to train.
        warnings: differences from earlier starts.
    """

    step: int
    is_finished: bool
    warnings: Sequence[str]


def choose_start(training: Run[TrainingConfig]) -> StartPoint:
    """Choose the checkpoint to resume from, and write digests of the model and data into the run's config.

    Raises:
        UserError: the folder's checkpoints are damaged, or belong to another run.
    """
    run_folder = training.folder
    warnings = []
    if run_folder.is_symlink():
        warnings.append(f"SAVE_PATH={run_folder} is a link: the run writes to {run_folder.resolve()}")
    saving.clear_stop_requests(run_folder)  # before the slow part, so that stop requests from now on count
    warnings += saving.choose_resume_step(run_folder)
    step = latest_step(run_folder)
    contents = same_run.digest_contents(training)
    training.note_contents(contents)
    if step:
        warnings += same_run.compare_with_folder(training, run_folder)
        warnings += saving.compare_validation_sets(run_folder, contents.get(saving.VALIDATION_FILES))
    total_steps = training.settings.total_steps
    needs_validation = lacks_validation(run_folder, step, training.settings.test_freq, total_steps)
    if needs_validation:
        warnings.append(f"the run ended after the checkpoint of step {step}, before its validation: validating it now")
    is_finished = total_steps is not None and step >= total_steps and not needs_validation
    return StartPoint(step=step, is_finished=is_finished, warnings=warnings)


def check_before_training(training: Run[TrainingConfig], arguments: Sequence[str]) -> list[str]:
    """Check that checkpoints can be loaded and will be kept, and that this machine can train.

    Returns:
        Warnings.

    Raises:
        UserError: the run would fail, or remove checkpoints that were kept on purpose.
    """
    from recipes.preflight import finding, findings  # slow, so errors in variables come first

    warnings = saving.check_shards_to_load(training.folder, training.num_devices)
    check_retention(training.folder, training.save_keep, arguments)
    if not os.environ.get("RAY_ADDRESS"):  # the nodes of a cluster are checked once Ray is connected
        warnings += finding.stop_on_failure(findings.examine(training, on_cluster=False))
    return warnings


def check_retention(run_folder: Path, keep: int | None, arguments: Sequence[str]) -> None:
    """Check that the default of SAVE_KEEP does not remove checkpoints that an earlier start kept on purpose.

    Args:
        run_folder: the run's folder.
        keep: number of newest checkpoints to keep; None keeps all.
        arguments: overrides of the command line; an explicit setting is obeyed.

    Raises:
        UserError: the next checkpoint would remove more than one of them.
    """
    is_explicit = os.environ.get("SAVE_KEEP", "").strip() or any("ckpt_to_keep" in text for text in arguments)
    if keep is None or is_explicit:
        return
    steps = saving.complete_steps(run_folder)
    if len(steps) > keep + 2:  # 2: the best one, and one that was being written when the run was killed
        raise UserError(
            "launch.checkpoints-at-risk",
            f"{run_folder} holds {len(steps)} checkpoints, and the next one would remove all but the newest {keep} and "
            f"the best: SAVE_KEEP=all keeps them, SAVE_KEEP={keep} removes them",
        )


def train(attempt: Attempt, recipe: Recipe, training: Run[TrainingConfig], resume_step: int) -> int:
    """Write the run's records, and train with the output in RUN/run.log.

    Args:
        attempt: this start of the run, which gets the log's path.
        recipe: the recipe.
        training: the run, whose folder this process has locked.
        resume_step: the checkpoint to resume from; 0 for a new run.

    Returns:
        The exit status; see `run`. Errors of the training become a status and a line, not an exception.
    """
    console = attempt.console
    run_folder = training.folder
    log_file = run_folder / "run.log"
    metrics_file = next_metrics_file(run_folder)
    os.environ["VERL_FILE_LOGGER_PATH"] = str(metrics_file)
    save_config(training.verl_config, run_folder)
    note_start(run_folder)
    title = recipe.describe_method(training)
    console.say(f"{title} of {training.settings.model} into {run_folder}, full log in {log_file}")
    if training.precision:
        console.say(f"passes in {training.precision}")
    if resume_step:
        console.say(f"resuming after step {resume_step}")
    parts = "verl's SFT trainer" if recipe.is_sft else "Ray, the FSDP actor and the vLLM rollout server"
    console.say(f"starting {parts} ...")
    if training.settings.watchdog == "resume":
        supervisor.note(resumes="yes")
    attempt.log_file = log_file
    total_steps = training.settings.total_steps
    try:
        with (
            redirect_output(log_file, console.secrets),
            progress(console, run_folder, total_steps, title, recipe.shown),
        ):
            recipe.train(training)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        # here, not in `run`, so that the user reads the line before the guard has ended all processes
        return report_end(attempt, error)
    console.say(f"{title} finished in {attempt.seconds:.0f} s: {run_folder}")
    return TRAINED


def say_warnings(console: Console, warnings: Sequence[str]) -> None:
    """Print one line per warning."""
    for warning in warnings:
        console.say(f"warning: {warning}")


# ---- the end of a run


@dataclass(frozen=True)
class Ending:
    """What a run does about errors of some types.

    Attributes:
        errors: the types.
        status: the exit status.
        describe: returns the text that is printed.
    """

    errors: tuple[type[BaseException], ...]
    status: int
    describe: Callable[[BaseException, Attempt], str]


def describe_bad_input(error: BaseException, attempt: Attempt) -> str:
    """Return a UserError's message and code."""
    assert isinstance(error, UserError)
    return error.as_line()


def describe_stop_request(error: BaseException, attempt: Attempt) -> str:
    """Return the line of a run that saved and stopped on request."""
    return f"{error}; the same command resumes"


def describe_interrupt(error: BaseException, attempt: Attempt) -> str:
    """Return the line of a run that was interrupted, with its latest checkpoint."""
    return supervisor.format_stop_message(attempt.run_folder)


def describe_failure(error: BaseException, attempt: Attempt) -> str:
    """Describe an unexpected end.

    Args:
        error: what ended the run.
        attempt: this start of the run.

    Returns:
        The error in one line, with what explains it if memory or a disk ran out. Once training has begun, also the
        duration, the log and the step to resume from.
    """
    line = one_line(error)
    if names_full_disk(line):  # such an error does not name the disk
        places = " ".join(str(place) for place in (attempt.run_folder, "/tmp", "/dev/shm") if place)
        line += f". Make room: `df -h {places}` and `quota -s` show where (SAVE_KEEP limits the checkpoints)"
    is_lost = isinstance(error, ProcessLost) and not isinstance(error, NoProgress)
    killed_for_memory = memory.explain(certain_only=not (is_lost or is_lost_process(error)))
    if killed_for_memory:
        line += f"\n{killed_for_memory}"
    if attempt.log_file is None:
        return f"failed: {line}"
    return (
        f"failed after {attempt.seconds:.0f} s: {line}\n"
        f"full log: {attempt.log_file}; the same command resumes after step {latest_step(attempt.log_file.parent)}"
    )


INTERRUPTED = Ending((KeyboardInterrupt, SystemExit), supervisor.STOPPED, describe_interrupt)
# The first entry with the error's type decides.
ENDINGS = (
    Ending((UserError,), BAD_INPUT, describe_bad_input),
    Ending((saving.StopRequested,), supervisor.STOPPED, describe_stop_request),
    INTERRUPTED,
    Ending((NoProgress,), supervisor.NO_PROGRESS, describe_failure),
    Ending((Exception,), FAILED, describe_failure),
)


def report_end(attempt: Attempt, error: BaseException) -> int:
    """Print why the run has ended, and write the traceback of a failure to the log.

    Args:
        attempt: this start of the run.
        error: what ended it.

    Returns:
        The exit status; see `run`.
    """
    ending = next(ending for ending in ENDINGS if isinstance(error, ending.errors))
    is_failure = ending.describe is describe_failure
    if is_failure and attempt.log_file and supervisor.was_asked_to_stop():
        # a scheduler's signal has ended other processes of the run as well
        ending = INTERRUPTED
        is_failure = False
    if is_failure and attempt.log_file:
        trace = attempt.console.mask("".join(traceback.format_exception(error)))
        with contextlib.suppress(OSError), attempt.log_file.open("a") as log:  # the disk may be full
            log.write(trace)
    if ending.status == supervisor.STOPPED:
        supervisor.note(said="yes")
    attempt.console.say(ending.describe(error, attempt))
    return ending.status
