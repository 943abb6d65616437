"""vLLM's batch logits processor: requests with `constrained_items` write lists of catalog items only.

vLLM has two model runners, each with its own processor interface. Which one runs is known only when an engine starts:
before vLLM 0.31, the first if there is a processor; since then, the second if there is Triton, on GPUs. So the class
that vLLM loads by name satisfies both interfaces and makes the adapter for the runner in use. Both use `vllm_lists`.
"""

import itertools
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.sample.logits_processor import LogitsProcessor as V1Interface
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from convrec.features.constrained.trie import Int64s
from convrec.features.constrained.vllm_lists import ListWriter, OpenLists, read_arguments

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2Interface
except ImportError:  # before vLLM 0.31
    V2Interface = object


class CatalogLogitsProcessor(V1Interface, V2Interface):
    """Masks the rows of constrained requests; other rows are not changed."""

    def __new__(cls, vllm_config: VllmConfig, *runner_arguments: Any) -> Any:
        processor = V2Processor if vllm_config.use_v2_model_runner else V1Processor
        return processor(vllm_config, *runner_arguments)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        read_arguments(sampling_params.extra_args)


class V1Processor(V1Interface):
    """For the first runner, which moves requests between rows and reports it to `update_state`.

    The runner passes a live list of a request's tokens; a preempted request comes back with its tokens and is walked
    again. With asynchronous scheduling, a token still on the device is -1 in this list until right before `apply`, if
    the processor was given by name as here (vLLM issue 52461). So `apply` reads the tokens, and a -1 is an error.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
        self.writer = ListWriter(vllm_config.additional_config, device)
        self.open = OpenLists()
        self.of_row: dict[int, tuple[int, list[int]]] = {}  # row -> key of its list, and its tokens
        self._used_keys: set[int] = set()
        self._keys_B = np.zeros(0, np.int64)
        self._rows_B = np.zeros(0, np.int64)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if not process_dict_updates(self.of_row, batch_update, self._begin):
            return
        keys = [key for key, _ in self.of_row.values()]
        for key in self._used_keys.difference(keys):
            self.open.remove(key)
        self._used_keys = set(keys)
        self._keys_B = np.array(keys, np.int64)
        self._rows_B = np.array([*self.of_row], np.int64)

    def _begin(self, params: SamplingParams, _: Any, tokens: list[int]) -> tuple[int, list[int]] | None:
        open_list = self.writer.begin(params.extra_args)
        if open_list is None:
            return None
        key = next(key for key in itertools.count() if key not in self._used_keys)
        self._used_keys.add(key)
        self.open.put(key, open_list)
        return key, tokens

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        token_lists = [tokens for _, tokens in self.of_row.values()]
        num_tokens_B = np.fromiter(map(len, token_lists), np.int64, len(token_lists))

        def read(places: Int64s, numbers: Int64s) -> Int64s:
            pairs = zip(places.tolist(), numbers.tolist(), strict=True)
            token_B = np.array([token_lists[place][number] for place, number in pairs], np.int64)
            if token_B.min() < 0:
                raise RuntimeError(
                    "vLLM's asynchronous scheduling hid a token from the constraint (vLLM issue 52461). Give the "
                    "processor by name, or start vLLM with async_scheduling=False."
                )
            return token_B

        self.open.catch_up(self._keys_B, num_tokens_B, read)
        return self.open.mask(logits, self._rows_B, self._keys_B)


class V2Processor(V2Interface):
    """For the second runner (vLLM pull 56497), where a request keeps its slot and rows change with every step.

    Tokens are only on the device; the host knows how many each request has. The tokens that the walks lack are read
    together, one per list. A free slot keeps its list until the next request gets it: vLLM does not report when a
    request ends.
    """

    def __init__(self, vllm_config: VllmConfig, req_states: Any):
        if vllm_config.speculative_config:  # a request would have several rows, some for tokens that get rejected
            raise ValueError("constrained lists: start vLLM without speculative decoding")
        self.writer = ListWriter(vllm_config.additional_config, req_states.device)
        self.requests = req_states
        self.open = OpenLists()  # by slot

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self.open.remove(req_idx)
        open_list = self.writer.begin(sampling_params.extra_args)
        if open_list is not None:
            self.open.put(req_idx, open_list)
        return open_list is not None

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        rows_B = np.flatnonzero(self.open.has_list(ctx.idx_mapping_np))
        slots_B = ctx.idx_mapping_np[rows_B].astype(np.int64)
        prompt_length_B = self.requests.prompt_len.np[slots_B].astype(np.int64)
        num_tokens_B = ctx.seq_lens_upper_bound_np[rows_B] - prompt_length_B
        all_token_ids = self.requests.all_token_ids.gpu

        def read(places: Int64s, numbers: Int64s) -> Int64s:
            sent = torch.from_numpy(np.stack([slots_B[places], prompt_length_B[places] + numbers]))
            slots, positions = sent.to(all_token_ids.device).unbind()
            return all_token_ids[slots, positions].cpu().numpy().astype(np.int64)

        self.open.catch_up(slots_B, num_tokens_B, read)
        return self.open.mask(logits, rows_B, slots_B)
