"""Threads that read requests, so that no request holds up the event loop or a smaller request."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
SMALL_CHARACTERS = 20_000  # some 5 ms of work
CHARACTERS_PER_NAME = 100  # looking up a title takes as long as reading so many characters
NAMES = ("seen", "allow", "exclude", "liked")


class RequestThreads:
    """Small requests share a few threads. Large ones wait for each other on one thread, so that they take at most one
    core and never all threads.

    A request that is cancelled while it waits is never read; one that is being read is read to its end.
    """

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(4, thread_name_prefix="convrec-request")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="convrec-large-request")

    async def run(self, read: Callable[..., T], conversation: Any, k: int, **filters: Any) -> T:
        """Call `read` with these arguments in a thread."""
        is_large = request_size(conversation, filters) > SMALL_CHARACTERS
        threads = self._large if is_large else self._small
        call = partial(read, conversation, k, **filters)
        return await asyncio.get_running_loop().run_in_executor(threads, call)


def request_size(conversation: Any, filters: dict[str, Any]) -> int:
    """The work that a request takes, in characters of conversation. Arguments of a wrong type count as nothing: they
    are refused when they are read."""
    turns = [conversation] if isinstance(conversation, str) else _as_collection(conversation)
    characters = sum(len(turn) if isinstance(turn, str) else len(str(_content(turn))) + 1 for turn in turns)
    names = sum(len(_as_collection(filters.get(name))) for name in NAMES)
    where = filters.get("where")
    conditions = where.values() if isinstance(where, Mapping) else ()
    values = sum(1 + len(_as_collection(condition)) for condition in conditions)
    return characters + CHARACTERS_PER_NAME * (names + values)


def _as_collection(value: Any) -> Collection[Any]:
    return value if isinstance(value, Collection) and not isinstance(value, str) else ()


def _content(turn: Any) -> Any:
    return turn.get("content", "") if isinstance(turn, Mapping) else ""
