"""The engine's event loop, without vLLM."""

import asyncio
import itertools
import threading

import pytest

from convrec.serving.engine import Engine


class Nothing:
    errored = False

    def shutdown(self) -> None:
        pass


async def one() -> int:
    return 1


def test_a_closed_engine_says_so_at_once() -> None:
    engine = Engine.__new__(Engine)  # `__init__` starts vLLM
    engine._numbers, engine.loop, engine.llm = itertools.count(), asyncio.new_event_loop(), Nothing()
    engine._thread = threading.Thread(target=engine.loop.run_forever, daemon=True)
    engine._thread.start()
    assert engine.run(one()) == 1
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="the engine was closed"):
        engine.run(one())
    with pytest.raises(RuntimeError, match="the engine was closed"):
        asyncio.run(asyncio.wait_for(engine.arun(one()), 5))
