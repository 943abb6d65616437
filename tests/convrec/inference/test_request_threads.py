"""Large requests wait only for each other."""

import asyncio
import threading

import pytest

from convrec.inference.request_threads import SMALL_CHARACTERS, RequestThreads, estimate_work

LONG = "x" * (SMALL_CHARACTERS + 1)


def test_large_requests_use_one_thread_and_do_not_block_small_ones() -> None:
    threads = RequestThreads()
    may_finish = threading.Event()
    large = []

    def read(conversation: str, k: int) -> str:
        if conversation == LONG:
            large.append(threading.current_thread())
            may_finish.wait()
        return threading.current_thread().name

    async def scenario() -> None:
        waiting = [asyncio.ensure_future(threads.run(read, LONG, 5)) for _ in range(20)]
        small = await asyncio.gather(*(threads.run(read, "hello", 5) for _ in range(20)))
        while not large:
            await asyncio.sleep(0.01)
        assert large[0].name not in small
        for request in waiting[1:]:  # their clients have disconnected
            request.cancel()
        await asyncio.gather(*waiting[1:], return_exceptions=True)
        may_finish.set()
        await waiting[0]

    asyncio.run(scenario())
    assert len(large) == 1  # cancelled requests are never parsed


@pytest.mark.parametrize(
    ("conversation", "filters", "is_large"),
    [
        (LONG, {}, True),
        ([{"role": "user", "content": "x" * 15_000}] * 2, {}, True),
        ("hi", {"allow": ["a"] * 1000}, True),
        ("hi", {"where": {"category": ["a"] * 1000}}, True),
        ("hi", {"seen": ["a"] * 50, "where": {"price": {"max": 3}, "in_stock": True}}, False),
        (None, {"seen": 3, "where": [1], "allow": None}, False),
        ([3, None, {"role": "user"}], {}, False),
    ],
)
def test_the_work_for_a_request_is_estimated(conversation: object, filters: dict, is_large: bool) -> None:
    assert (estimate_work(conversation, filters) > SMALL_CHARACTERS) is is_large
