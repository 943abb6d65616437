"""vLLM's asynchronous engine behind an event loop of its own, for callers with any loop or none.

The engine itself is a further process, which ends when this one does, however that happens. `run` and `iterate` are for
coroutines of any kind: what they get runs on the engine's loop, as all of vLLM's asynchronous code must.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, TypeVar

from convrec.inference.engines.engine_settings import engine_settings, without_compiler

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

T = TypeVar("T")
FOLLOWER = "convrec.inference.engines.follower.Follower"
_END = object()


class Engine:
    """llm: vLLM's AsyncLLM, for its metrics and its OpenAI handlers; await it on `loop` alone (`run`, `iterate`)."""

    _is_closed = False

    def __init__(
        self, model: str, trie_file: str | None, *, max_model_len: int, tensor_parallel: int = 1, **settings: Any
    ):
        """trie_file: of the catalog; None: for free text alone. settings: further arguments of vLLM's engine.

        Blocks until it is ready; raises what vLLM does.
        """
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # before vLLM is imported
        # a core is left to event loops and the scheduler: threads that meet at every layer must not wait for a busy one
        self._on_cpu, machine_settings = engine_settings(tensor_parallel, spare_cores=1)
        from convrec.features.constrained.vllm_lists import PROCESSOR, TRIE

        self._settings = machine_settings | {
            "model": model,
            "max_model_len": max_model_len,
            "worker_extension_cls": FOLLOWER,
            **settings,
        }
        if trie_file:
            self._settings |= {"logits_processors": [PROCESSOR], "additional_config": {TRIE: trie_file}}
            self._settings["logprobs_mode"] = "processed_logprobs"  # of the constrained policy: scores
        self._numbers = itertools.count()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="convrec-engine", daemon=True)
        self._thread.start()
        try:
            self.llm: AsyncLLM = self.run(self._start())
        except BaseException:
            self._stop_loop()
            raise

    async def _start(self) -> "AsyncLLM":
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        with without_compiler(self._on_cpu):
            llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._settings))
        await llm.collective_rpc("end_with", args=(os.getpid(),))
        return llm

    # ---- from any thread or loop to the engine's

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Raises RuntimeError once `close` was called, as all that ask the engine do."""
        if self._is_closed:  # its loop would never run it
            coroutine.close()
            raise RuntimeError("the engine was closed; load the model again")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for it, in a thread that is not the engine's loop."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # KeyboardInterrupt: what was asked is not needed any more
            raise

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await it from any loop; cancelling this cancels it."""
        if asyncio.get_running_loop() is self.loop:
            return await coroutine
        return await asyncio.wrap_future(self.submit(coroutine))

    async def iterate(self, iterator: AsyncIterator[T]) -> AsyncIterator[T]:
        """What an asynchronous generator gives that runs on the engine's loop. Closing this closes it."""
        if asyncio.get_running_loop() is self.loop:
            async for value in iterator:
                yield value
            return
        loop = asyncio.get_running_loop()
        queue = asyncio.Queue[Any]()

        async def pump() -> None:
            async for value in iterator:
                loop.call_soon_threadsafe(queue.put_nowait, value)

        future = self.submit(pump())
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(queue.put_nowait, _END))
        try:
            while (value := await queue.get()) is not _END:
                yield value
            future.result()  # its error
        finally:
            future.cancel()

    # ---- requests, on the engine's loop

    def outputs(self, prompt_ids: Sequence[int], sampling: "SamplingParams") -> AsyncIterator["RequestOutput"]:
        """vLLM's outputs of one request, on the engine's loop."""
        prompt: Any = {"prompt_token_ids": list(prompt_ids)}
        return self.llm.generate(prompt, sampling, f"list-{next(self._numbers)}")

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self.llm.errored

    def close(self) -> None:
        """End the engine's process; what is being written fails with vLLM's EngineDeadError. Twice is no error."""
        if self._thread.is_alive():
            log = logging.getLogger("vllm.v1.engine.async_llm")
            log.disabled = True  # it would tell the end that is wanted here as an error, with a traceback
            self.llm.shutdown()
            self.llm.shutdown = lambda timeout=None: None  # of its __del__, which fails at exit
            self._stop_loop()
            log.disabled = False

    def _stop_loop(self) -> None:
        self._is_closed = True

        async def cancel_others() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        with contextlib.suppress(TimeoutError, CancelledError):
            asyncio.run_coroutine_threadsafe(cancel_others(), self.loop).result(timeout=10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)
