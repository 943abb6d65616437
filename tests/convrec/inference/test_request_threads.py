"""Large requests wait for each other and for nobody else."""

import asyncio
import threading

import pytest

from convrec.inference.request_threads import SMALL_CHARACTERS, RequestThreads, request_size

LONG = "x" * (SMALL_CHARACTERS + 1)


def test_large_requests_take_one_thread_and_small_ones_go_on() -> None:
    threads = RequestThreads()
    go_on = threading.Event()
    large = []

    def read(conversation: str, k: int) -> str:
        if conversation == LONG:
            large.append(threading.current_thread())
            go_on.wait()
        return threading.current_thread().name

    async def scenario() -> None:
        waiting = [asyncio.ensure_future(threads.run(read, LONG, 5)) for _ in range(20)]
        small = await asyncio.gather(*(threads.run(read, "hello", 5) for _ in range(20)))
        while not large:
            await asyncio.sleep(0.01)
        assert large[0].name not in small
        for one in waiting[1:]:  # their clients have gone
            one.cancel()
        await asyncio.gather(*waiting[1:], return_exceptions=True)
        go_on.set()
        await waiting[0]

    asyncio.run(scenario())
    assert len(large) == 1  # what was cancelled is never read


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
def test_the_size_of_a_request(conversation: object, filters: dict, is_large: bool) -> None:
    assert (request_size(conversation, filters) > SMALL_CHARACTERS) is is_large
