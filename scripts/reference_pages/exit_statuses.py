"""exit-statuses.md: how commands end, and what signals do to them."""

import signal

from convrec.runs import supervisor
from recipes.launch import runner
from recipes.serving.schema import MAX_DRAIN_SECONDS, Limits
from reference_pages.markdown import code, table

STATUSES = (
    (0, "done, or there was nothing left to do"),
    (runner.FAILED, "failed. The terminal shows the reason, `RUN/run.log` the traceback"),
    (runner.BAD_INPUT, "bad input: one line, `error: MESSAGE [CODE]`, before anything expensive starts"),
    (supervisor.NO_PROGRESS, "a phase of a step hung (`EX_TEMPFAIL`). The same command resumes the run"),
    (supervisor.STOPPED, "stopped by a signal or by `RUN/stop`. The same command resumes the run"),
    (128 + signal.SIGKILL, "killed by SIGKILL, for example by the kernel when memory ran out"),
    (128 + signal.SIGTERM, "SIGTERM arrived before the command was ready to handle it"),
)
COMMAND_STATUSES = (
    ("doctor", f"{runner.FAILED}: at least one check failed"),
    ("gpu-check", f"{runner.FAILED}: at least one phase failed. Skipped phases do not count"),
    ("matrix", f"{runner.FAILED}: at least one run or evaluation failed; the others are finished"),
    ("demo", f"{runner.FAILED}: training or evaluation failed; the same command resumes"),
    ("submit", f"the job's exit status; {supervisor.STOPPED} if you stop following it"),
    ("serve", f"{supervisor.STOPPED} after Ctrl-C"),
)


def exit_statuses_page() -> str:
    """Return the page."""
    statuses = table(("status", "meaning"), ((code(str(status)), text) for status, text in STATUSES))
    commands = table(("command", "status"), ((code(f"convrec {name}"), text) for name, text in COMMAND_STATUSES))
    first = " or ".join(sorted(one.name for one in supervisor.ENDING))
    drain = Limits().drain_seconds
    grace = supervisor.SAME_SIGNAL_SECONDS
    minutes = supervisor.SAVE_SECONDS / 60
    return f"""
# Exit statuses and signals
## Exit statuses
{statuses}

Some commands give a status a meaning of their own:

{commands}

In Python, status {runner.BAD_INPUT} is a `UserError`. Any other status except 0 is a `CommandFailed` with that
`status`.

## Signals to a training run
| signal | effect |
|---|---|
| the first {first} | the run saves a checkpoint at the end of its step, then exits with {supervisor.STOPPED} |
| a second one, at least {grace:.0f} s later | the run stops at once, and is killed after {supervisor.SECONDS:.0f} s |
| a third one | the run is killed |
| {signal.SIGUSR1.name} | as the first one, however often it arrives |
| {signal.SIGTERM.name} with `{supervisor.SAVE_VARIABLE}=0` | as the second one: nothing is saved |

Before the first step there is nothing to save, so the first signal stops the run at once. A run whose checkpoint is not
written {minutes:.0f} minutes after the first signal is stopped. `touch RUN/stop` has the effect of the first signal.

## Signals to other commands
Evaluation, data preparation and other commands that do not train stop at the first signal. They exit with
{supervisor.STOPPED} and leave no temporary files. The same command continues where it can use earlier results.

`convrec serve` drains at the first signal: new requests get 503, running ones have `--drain-seconds` to finish
({drain:.0f} by default, at most {MAX_DRAIN_SECONDS}). A second signal stops it at once.
"""
