"""Ids of actors' classes from the system's random numbers. Imported first by a process that others are forked from.

Ray draws an id for each class that becomes an actor, for TransferQueue's when it is imported. Its generator is seeded
by the first draw: were that before the fork, all that is forked would draw the same ids for its tasks and objects, and
end at the first two that meet.
"""

import os
import types
from typing import Any, cast

from ray import ActorClassID, actor

actor.ActorClassID = cast(Any, types.SimpleNamespace(from_random=lambda: ActorClassID(os.urandom(ActorClassID.size()))))
