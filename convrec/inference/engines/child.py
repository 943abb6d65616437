"""The child process of a replica: it loads a model, and answers tasks until its parent has no more."""

import os
import sys
import traceback
from multiprocessing.connection import Connection
from typing import NoReturn

from convrec.base.errors import UserError
from convrec.inference.engines.process import ANSWER, ERROR, PROGRESS, Died
from convrec.runs import guard, supervisor


def main(descriptor: str, parent: str) -> None:
    """Answer the parent's tasks.

    Args:
        descriptor: this end of the pipe. The first message is (load, settings), all others are tasks.
        parent: the parent's process id; the child ends with it.
    """
    supervisor.die_with_parent(int(parent))
    guard.register_process()
    connection = Connection(int(descriptor))
    answer = None
    while True:
        try:
            message = connection.recv()
        except EOFError:
            hard_exit(0)
        try:
            if answer is None:
                load, settings = message
                answer = load(settings)
            else:
                connection.send((ANSWER, answer(message, lambda number: connection.send((PROGRESS, number)))))
        except (Died, UserError) as error:  # Died: the task itself uses an engine in another process
            connection.send((ERROR, error))
            hard_exit(1)
        except Exception:
            traceback.print_exc()  # the parent shows the end of the log
            sys.stderr.flush()
            connection.send((ERROR, None))
            hard_exit(1)


def hard_exit(code: int) -> NoReturn:
    """Exit without interpreter shutdown: vLLM's and torch's threads delay it and bury the error in their reports."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
