"""The shell in which the commands of a page run."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

SECONDS = 1500  # that the commands may take, on busy cores


def run_commands(folder: Path, commands: str, environment: Mapping[str, str]) -> str:
    """Run commands in one shell, as somebody who pastes them.

    Args:
        folder: where they run.
        commands: lines of bash; the first failure ends them.
        environment: all variables of the shell.

    Returns:
        What they print.
    """
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout
