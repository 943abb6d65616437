"""One run of a recipe as its user sees it: bad input refused, a finished run left alone, progress, an exit status."""

import contextlib
import errno
import os
import time
import traceback
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from convrec.checkpoints import saving
from convrec.errors import NoProgress, UserError, one_line
from convrec.runs import guard, supervisor
from convrec.runs.folder import hold, lacks_validation, latest_step, next_metrics_file
from convrec.runs.starts import note_start
from convrec.settings.run import Run
from recipes.launch import dry_run, ray_training, same_run
from recipes.launch.console import Console, output_to, progress
from recipes.launch.environment import leave, process_environment, set_up_process
from recipes.launch.recipe import Recipe
from recipes.launch.settings import compose, save_config
from recipes.launch.variables import misspelt_variables
from recipes.planning.work import model_of
from recipes.preflight.cores import uses_ray


def run(recipe: Recipe, arguments: list[str]) -> int:
    """Compose, check and train. Exit status: 0 trained, 1 failed (the log says why), 2 bad input, 75 hung, 130 stopped.

    A flag of `dry_run.FLAGS` is answered instead.

    arguments: overrides of the command line. Training has stdout and stderr in RUN/run.log.
    """
    if (status := dry_run.answer(recipe, arguments)) is not None:
        return status
    set_up_process()
    console = Console()
    start = time.monotonic()
    for text in misspelt_variables(os.environ):  # at once: it may be why there is an error
        console.say(f"warning: {text}")
    try:
        config = compose(recipe.name, arguments)
        run_folder = Path(config.trainer.default_local_dir)
        os.environ.update(process_environment(config.trainer.device != "cpu"))
        with guard.guarded(_gone(recipe.title_of(config), run_folder)) as temporary:
            supervisor.note(temporary=str(temporary))
            if not recipe.is_sft or uses_ray(Run.from_config(config)):
                ray_training.begin(config)
            warnings = recipe.check(Run.from_config(config))
            with hold(run_folder) as more:
                supervisor.note(run=str(run_folder))
                try:
                    status = _run(console, start, recipe, arguments, config, [*warnings, *more])
                except OSError as error:  # of what is written before training
                    console.say(f"failed: {_said_of(error, run_folder)}")
                    status = 1
    except UserError as error:
        console.say(f"error: {error}")
        status = 2
    return leave(status)


def _run(
    console: Console, start: float, recipe: Recipe, arguments: list[str], config: DictConfig, warnings: list[str]
) -> int:
    """The run, its folder held. Raises UserError for what cannot train."""
    from recipes.preflight import finding, findings  # late: a wrong variable is refused before these imports

    title = recipe.title_of(config)
    run_folder = Path(config.trainer.default_local_dir)
    if run_folder.is_symlink():
        warnings.append(f"SAVE_PATH={run_folder} is a link: the run writes to {run_folder.resolve()}")
    saving.forget_stops(run_folder)  # before what takes long: a stop that is asked for from now on counts
    warnings += saving.choose_resume_step(run_folder)
    done, steps = latest_step(run_folder), config.trainer.total_training_steps
    OmegaConf.update(config, "run.contents", same_run.contents(config), force_add=True)
    if done:
        warnings += same_run.changes(config, run_folder)
    is_unvalidated = lacks_validation(run_folder, done, config.trainer.test_freq, steps)
    if is_unvalidated:
        warnings.append(f"the run ended between the checkpoint of step {done} and its validation, which is made now")
    if steps and done >= steps and not is_unvalidated:
        for warning in warnings:
            console.say(f"warning: {warning}")
        console.say(
            f"{run_folder} already has its {done} steps. To train longer raise TOTAL_STEPS; to start anew choose "
            "another SAVE_PATH or move this folder away."
        )
        return 0
    warnings += saving.check_shards_to_load(run_folder, config.trainer.nnodes * config.trainer.n_gpus_per_node)
    _refuse_to_remove_unasked(run_folder, config.trainer.get("max_actor_ckpt_to_keep"), arguments)
    if not os.environ.get("RAY_ADDRESS"):  # a cluster's nodes are asked once Ray is there
        warnings += finding.stop_on_failure(findings.examine(Run.from_config(config), on_cluster=False))
    for warning in warnings:
        console.say(f"warning: {warning}")

    os.environ["VERL_FILE_LOGGER_PATH"] = str(next_metrics_file(run_folder))
    save_config(config, run_folder)
    note_start(run_folder)
    log_file = run_folder / "run.log"
    console.say(f"{title} of {model_of(config)} into {run_folder}, full log in {log_file}")
    if done:
        console.say(f"resuming after step {done}")
    parts = "verl's SFT trainer" if recipe.is_sft else "Ray, the FSDP actor and the vLLM rollout server"
    console.say(f"starting {parts} ...")
    supervisor.note(stop=str(run_folder / saving.STOP), metrics=os.environ["VERL_FILE_LOGGER_PATH"])
    if config.convrec.watchdog == "resume":
        supervisor.note(resumes="yes")
    try:
        with output_to(log_file), progress(console, run_folder, steps, title, recipe.shown):
            recipe.train(config)
    except (KeyboardInterrupt, SystemExit):
        return _stopped(console, supervisor.stop_line(run_folder))
    except UserError:
        raise  # `run` says it
    except saving.StopRequested as request:
        return _stopped(console, f"{request}; the same command resumes")
    except Exception as error:
        if supervisor.was_asked_to_stop():  # a scheduler's signal has ended other processes of the run as well
            return _stopped(console, supervisor.stop_line(run_folder))
        with contextlib.suppress(OSError), open(log_file, "a") as log:  # the disk may be full
            traceback.print_exc(file=log)
        console.say(
            f"failed after {time.monotonic() - start:.0f} s: {_said_of(error, run_folder)}\n"
            f"full log: {log_file}; the same command resumes after step {latest_step(run_folder)}"
        )
        return supervisor.NO_PROGRESS if isinstance(error, NoProgress) else 1
    console.say(f"{title} finished in {time.monotonic() - start:.0f} s: {run_folder}")
    return 0


def _gone(title: str, run_folder: Path) -> str:
    return (
        f"{title}: its process is gone without a word (killed, or a process of Ray died): all it had started is ended. "
        f"The log, {run_folder / 'run.log'}, may say why; the same command resumes."
    )


def _said_of(error: BaseException, run_folder: Path) -> str:
    """The error's line; of a full disk, which errors do not name, where to look."""
    line = one_line(error)
    if os.strerror(errno.ENOSPC) in line:
        line += f". Make room: `df -h {run_folder} /tmp /dev/shm` says where (SAVE_KEEP limits what is kept)"
    return line


def _stopped(console: Console, text: str) -> int:
    supervisor.note(said="yes")
    console.say(text)
    return supervisor.STOPPED


def _refuse_to_remove_unasked(run_folder: Path, keep: int | None, arguments: list[str]) -> None:
    """Raise UserError where the default of SAVE_KEEP would remove what an earlier start was told to keep."""
    is_asked = os.environ.get("SAVE_KEEP", "").strip() or any("max_actor_ckpt_to_keep" in text for text in arguments)
    if keep is None or is_asked:
        return
    steps = saving.complete_steps(run_folder)
    if len(steps) > keep + 2:  # the best one, and one that was written when the run was killed
        raise UserError(
            f"{run_folder} holds {len(steps)} checkpoints, and the next one would remove all but the newest {keep} and "
            f"the best: SAVE_KEEP=all keeps them, SAVE_KEEP={keep} removes them"
        )
