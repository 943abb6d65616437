"""The child process of a replica: it loads what it was told to, and answers tasks until its parent has no more."""

import os
import sys
import traceback
from multiprocessing.connection import Connection
from typing import NoReturn

from convrec.base.errors import UserError
from convrec.inference.engines.process import ANSWER, ERROR, PROGRESS, Died
from convrec.runs import guard, supervisor


def main(descriptor: str, parent: str) -> None:
    """descriptor: this end of the pipe to `parent`. The first message is (load, settings), all others are tasks."""
    supervisor.die_with(int(parent))
    guard.join()
    connection = Connection(int(descriptor))
    answer = None
    while True:
        try:
            message = connection.recv()
        except EOFError:
            leave(0)
        try:
            if answer is None:
                load, settings = message
                answer = load(settings)
            else:
                connection.send((ANSWER, answer(message, lambda number: connection.send((PROGRESS, number)))))
        except (Died, UserError) as error:  # Died: what it works with, an engine in a process of its own
            connection.send((ERROR, error))
            leave(1)
        except Exception:
            traceback.print_exc()  # the last lines of the log: the parent shows them
            sys.stderr.flush()
            connection.send((ERROR, None))
            leave(1)


def leave(code: int) -> NoReturn:
    """Exit without interpreter shutdown: vLLM's and torch's threads hold it up and bury an error in reports."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
