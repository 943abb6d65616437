"""vLLM's asynchronous engine on its own event loop, for callers with any loop or none.

The engine runs in another process, which ends when this process ends for any reason. `run` and `iterate` take any
coroutine and run it on the engine's loop, as all of vLLM's asynchronous code requires.
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

from convrec.inference.engines.engine_settings import disable_compiler, engine_settings

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

T = TypeVar("T")
FOLLOWER = "convrec.inference.engines.follower.Follower"
_END = object()


class Engine:
    """vLLM's asynchronous engine and its event loop.

    Attributes:
        llm: vLLM's AsyncLLM, for its metrics and OpenAI handlers; await its methods only on `loop` (`run`, `iterate`).
        loop: the engine's event loop.
    """

    def __init__(
        self, model: str, trie_file: str | None, *, max_model_len: int, tensor_parallel: int = 1, **settings: Any
    ):
        """Start the engine; blocks until it is ready, and raises vLLM's errors.

        Args:
            model: a Hugging Face folder or id.
            trie_file: the catalog's trie; None for an engine that writes only free text.
            max_model_len: tokens of a prompt and its answer.
            tensor_parallel: GPUs of the engine.
            **settings: further arguments of vLLM's engine.
        """
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # before vLLM is imported
        os.environ.setdefault("SAGEMAKER_CONTAINER_LOG_LEVEL", "WARNING")  # else vLLM's server hides all warnings
        # one core is left to event loops and the scheduler: threads that synchronise at every layer must not wait
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
            self._settings["logprobs_mode"] = "processed_logprobs"  # scores are those of the constrained policy
        self._numbers = itertools.count()
        self._closing = threading.Lock()
        self._is_closed = False
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

        with disable_compiler(self._on_cpu):
            llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._settings))
        await llm.collective_rpc("end_with", args=(os.getpid(),))
        return llm

    # ---- from any thread or loop to the engine's loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine on the engine's loop, without waiting for it.

        Raises:
            RuntimeError: the engine was closed.
        """
        with self._closing:  # the loop would never run what comes after its end
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        coroutine.close()
        raise RuntimeError("the engine was closed. Load the model again.")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's loop and wait for it, in any thread except the loop's.

        Args:
            coroutine: anything that awaits the engine. It is cancelled if the wait is interrupted.

        Returns:
            The coroutine's result; its errors are raised here.
        """
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # after KeyboardInterrupt, nobody needs the result
            raise

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine on the engine's loop from any loop; cancelling the call cancels the coroutine."""
        if asyncio.get_running_loop() is self.loop:
            return await coroutine
        return await asyncio.wrap_future(self.submit(coroutine))

    async def iterate(self, iterator: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yield the values of an asynchronous generator that runs on the engine's loop; closing this one closes it."""
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
            future.result()  # raises the generator's error
        finally:
            future.cancel()

    # ---- requests, on the engine's loop

    def outputs(self, prompt_ids: Sequence[int], sampling: "SamplingParams") -> AsyncIterator["RequestOutput"]:
        """Start a request; call this, and iterate, on the engine's loop (`run`, `iterate`).

        Args:
            prompt_ids: tokens of the prompt.
            sampling: vLLM's parameters; `output_kind` says whether an output has all tokens or the new ones.

        Returns:
            An iterator of vLLM's outputs; closing it ends the request.
        """
        prompt: Any = {"prompt_token_ids": list(prompt_ids)}
        return self.llm.generate(prompt, sampling, f"list-{next(self._numbers)}")

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self.llm.errored

    def close(self) -> None:
        """End the engine's process; unfinished requests fail with vLLM's EngineDeadError. Idempotent."""
        if self._thread.is_alive():
            log = logging.getLogger("vllm.v1.engine.async_llm")
            log.disabled = True  # it would log this intended shutdown as an error, with a traceback
            self.llm.shutdown()
            self.llm.shutdown = lambda timeout=None: None  # __del__ calls it again, which fails at exit
            self._stop_loop()
            log.disabled = False

    def _stop_loop(self) -> None:
        with self._closing:
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
