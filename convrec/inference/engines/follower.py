"""In vLLM's worker processes: they end when the process ends that they work for. vLLM's own only do so when it is asked
to stop, not when it is killed."""

import os
import select
import signal
import threading


class Follower:
    """A worker extension (vLLM's worker_extension_cls)."""

    def end_with(self, pid: int) -> None:
        """Kill this process as soon as that one is gone; vLLM ends its others then."""
        watched = os.pidfd_open(pid)

        def wait() -> None:
            poll = select.poll()  # not select.select, which takes descriptors below 1,024 only
            poll.register(watched, select.POLLIN)
            poll.poll()
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=wait, name="convrec-follower", daemon=True).start()
