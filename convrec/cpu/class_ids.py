"""Draw the ids of actor classes from the system's random numbers; imported first by the process that forks others.

Ray draws an id for each actor class, in TransferQueue already on import, and seeds its generator at the first draw. If
this were before the fork, all forked processes would draw the same ids for their tasks and objects, and fail when two
of them meet.
"""

import os
import types
from typing import Any, cast

from ray import ActorClassID, actor

actor.ActorClassID = cast(Any, types.SimpleNamespace(from_random=lambda: ActorClassID(os.urandom(ActorClassID.size()))))
