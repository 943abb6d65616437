"""The engine's loop at its end; what it computes is tested through Recommender, with a real vLLM."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from convrec.inference.engines.async_engine import Engine


def test_a_request_in_the_moment_of_closing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread closes the engine after the request has seen it open, and before it is on the loop."""
    engine = Engine.__new__(Engine)
    engine._closing = threading.Lock()
    engine._is_closed = False
    engine.loop = asyncio.new_event_loop()
    engine._thread = threading.Thread(target=engine.loop.run_forever)
    engine._thread.start()
    closing = threading.Thread(target=engine._stop_loop)
    schedule = asyncio.run_coroutine_threadsafe

    def close_first(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Future[Any]:
        if threading.current_thread() is threading.main_thread():
            closing.start()
            closing.join(timeout=1)  # it waits for this request to be on the loop
        return schedule(coroutine, loop)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", close_first)
    request = engine.submit(asyncio.sleep(60))
    with pytest.raises(CancelledError):
        request.result(timeout=20)
    closing.join()
    with pytest.raises(RuntimeError, match="the engine was closed"):
        engine.submit(asyncio.sleep(60))
