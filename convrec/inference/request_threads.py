"""Threads that parse requests, so that no request blocks the event loop or a smaller request."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
SMALL_CHARACTERS = 20_000  # about 5 ms of work
CHARACTERS_PER_NAME = 100  # looking up a title takes as long as parsing this many characters
NAMES = ("seen", "allow", "exclude", "liked")


class RequestThreads:
    """Small requests share a few threads; large ones queue for a single thread, so that they use at most one core.

    A request cancelled while it waits is never parsed; one that is being parsed is finished.
    """

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(4, thread_name_prefix="convrec-request")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="convrec-large-request")

    async def run(self, read: Callable[..., T], conversation: Any, k: int, **filters: Any) -> T:
        """Call `read` with these arguments in a thread, and await its result.

        Args:
            read: parses a request; it must be thread-safe.
            conversation: see `Recommender.recommend`; anything is accepted, since only `read` checks it.
            k: number of items.
            **filters: see `Recommender.recommend`.
        """
        is_large = estimate_work(conversation, filters) > SMALL_CHARACTERS
        threads = self._large if is_large else self._small
        call = partial(read, conversation, k, **filters)
        return await asyncio.get_running_loop().run_in_executor(threads, call)


def estimate_work(conversation: Any, filters: dict[str, Any]) -> int:
    """Estimate the work for a request, in characters of conversation.

    Arguments of a wrong type count as 0: they are refused when the request is parsed.

    Args:
        conversation: see `Recommender.recommend`.
        filters: see `Recommender.recommend`; only names of items and conditions count.
    """
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
