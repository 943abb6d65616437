"""One run of a recipe as its user sees it: bad input refused, a finished run left alone, progress, an exit status."""

import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from convrec.errors import UserError
from convrec.runs import MODEL_KEYS, latest_step, next_metrics_file
from convrec.tracking import tracker_environment
from recipes import host
from recipes.console import Console, output_to, progress
from recipes.settings import compose, finished_message, save_config


def run(
    recipe: str,
    title: str,
    parts: str,
    arguments: list[str],
    check: Callable[[DictConfig], list[str]],
    train: Callable[[DictConfig], None],
    shown: Mapping[str, str],
) -> int:
    """Compose, check and train. Exit status: 0 trained, 1 failed (the log says why), 2 bad input, 130 stopped.

    Args:
        parts: what takes a while to start, for the line that says so.
        check: raises UserError for what cannot train, returns warnings.
        train: runs with stdout and stderr in RUN/run.log.
        shown: metric name -> short name beside the progress bar.
    """
    host.set_thread_policy()
    console = Console()
    start = time.monotonic()
    try:
        config = compose(recipe, arguments)
        warnings = check(config)
        if config.trainer.device != "cpu" and not host.has_flash_attention():
            warnings.append(
                "flash-attn is not installed: attention by PyTorch, without sequence packing, which is slower"
            )
    except UserError as error:
        console.say(f"error: {error}")
        return 2
    for warning in warnings:
        console.say(f"warning: {warning}")

    run_folder = Path(config.trainer.default_local_dir)
    steps = config.trainer.total_training_steps
    done = latest_step(run_folder)
    if steps and done >= steps:
        console.say(finished_message(run_folder, done))
        return 0
    os.environ.update(host.process_environment(config.trainer.device != "cpu"))
    os.environ.update(tracker_environment(run_folder, config.trainer.experiment_name, os.environ))
    os.environ["VERL_FILE_LOGGER_PATH"] = str(next_metrics_file(run_folder))
    save_config(config, run_folder)
    log_file = run_folder / "run.log"
    model = OmegaConf.select(config, MODEL_KEYS[recipe])
    console.say(f"{title} of {model} into {run_folder}, full log in {log_file}")
    if done:
        console.say(f"resuming after step {done}")
    console.say(f"starting {parts} ...")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's stop ends Ray's processes as Ctrl-C does
    try:
        with output_to(log_file), progress(console, run_folder, steps, title, shown):
            train(config)
    except (KeyboardInterrupt, SystemExit):
        console.say(f"stopped after step {latest_step(run_folder)}; the same command resumes")
        return 130
    except Exception as error:
        with open(log_file, "a") as log:
            traceback.print_exc(file=log)
        console.say(f"failed after {_seconds_since(start)}: {_reason(error)}\nfull log: {log_file}")
        return 1
    console.say(f"{title} finished in {_seconds_since(start)}: {run_folder}")
    return 0


def _seconds_since(start: float) -> str:
    return f"{time.monotonic() - start:.0f} s"


def _reason(error: BaseException) -> str:
    """The innermost cause: Ray wraps a worker's error in its own."""
    cause = getattr(error, "cause", None) or error
    text = str(cause).strip() or type(cause).__name__
    return text.splitlines()[-1]
