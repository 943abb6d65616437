"""Makes vLLM's worker processes end with the process that they work for, even if it is killed.

vLLM's own workers end only if that process is asked to stop.
"""

import os
import select
import signal
import threading


class Follower:
    """A worker extension (vLLM's worker_extension_cls)."""

    def end_with(self, pid: int) -> None:
        """Kill this process as soon as process `pid` is gone; vLLM then ends its other workers."""
        watched = os.pidfd_open(pid)

        def wait() -> None:
            poll = select.poll()  # select.select takes only descriptors below 1,024
            poll.register(watched, select.POLLIN)
            poll.poll()
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=wait, name="convrec-follower", daemon=True).start()
