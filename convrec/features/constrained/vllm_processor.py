"""vLLM's batch logits processor: requests that say `constrained_items` write lists of the catalog only.

vLLM has two model runners, and each takes processors of its own interface alone. Which one runs is known when an engine
starts: before vLLM 0.31 the first where there is a processor, since then the second where there is Triton, on GPUs. So
the class that vLLM is given by name passes for both and makes the adapter of the one that asks. Both use `vllm_lists`.
"""

from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.sample.logits_processor import LogitsProcessor as V1Interface
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from convrec.features.constrained.vllm_lists import ListWriter, OpenList, read_arguments

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2Interface
except ImportError:  # before vLLM 0.31
    V2Interface = object


class CatalogLogitsProcessor(V1Interface, V2Interface):
    """Masks the rows of constrained requests; others are left alone."""

    def __new__(cls, vllm_config: VllmConfig, *of_runner: Any) -> Any:
        runner = V2Processor if vllm_config.use_v2_model_runner else V1Processor
        return runner(vllm_config, *of_runner)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        read_arguments(sampling_params.extra_args)


class V1Processor(V1Interface):
    """For the first runner, which moves requests between rows and says so in `update_state`.

    It hands over a live list of a request's tokens; a preempted request comes back with its tokens and is walked again.
    With asynchronous scheduling a token that is still on the device is -1 in it until right before `apply` (vLLM issue
    52461: where a processor is given by name, as this one). So they are read there, and a -1 is an error, not a token.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
        self.writer = ListWriter(vllm_config.additional_config, device)
        self.of_row: dict[int, tuple[OpenList, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.of_row, batch_update, self._begin)

    def _begin(self, params: SamplingParams, _: Any, tokens: list[int]) -> tuple[OpenList, list[int]] | None:
        one = self.writer.begin(params.extra_args)
        return (one, tokens) if one else None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for one, tokens in self.of_row.values():
            new = tokens[one.num_taken :]
            if -1 in new:
                raise RuntimeError(
                    "vLLM's asynchronous scheduling hid a token from the constraint (vLLM issue 52461): give the "
                    "processor by its name, or start vLLM with async_scheduling=False"
                )
            one.take(new)
        return self.writer.mask(logits, {row: one for row, (one, _) in self.of_row.items()})


class V2Processor(V2Interface):
    """For the second runner (vLLM pull 56497), where a request keeps its slot and rows change with every step.

    Tokens are on the device alone; how many each request has is known on the host. What the walks have not taken yet
    is read at once: a token of each list, or all of a list that was preempted. A slot that is free keeps its list
    until the next request has it: vLLM does not say when one ends.
    """

    def __init__(self, vllm_config: VllmConfig, req_states: Any):
        if vllm_config.speculative_config:  # several rows of a request, some of them for tokens that are not written
            raise ValueError("constrained lists: start vLLM without speculative decoding")
        self.writer = ListWriter(vllm_config.additional_config, req_states.device)
        self.requests = req_states
        self.of_slot: dict[int, OpenList] = {}

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self.of_slot.pop(req_idx, None)
        if one := self.writer.begin(sampling_params.extra_args):
            self.of_slot[req_idx] = one
        return one is not None

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        slots, lengths = ctx.idx_mapping_np.tolist(), ctx.seq_lens_upper_bound_np.tolist()
        lists = {row: self.of_slot[slot] for row, slot in enumerate(slots) if slot in self.of_slot}
        new = [
            (slots[row], place, one)
            for row, one in lists.items()
            for place in range(self.requests.prompt_len.np[slots[row]] + one.num_taken, lengths[row])
        ]
        if new:
            tokens = self.requests.all_token_ids.gpu[[slot for slot, _, _ in new], [place for _, place, _ in new]]
            for (_, _, one), token in zip(new, tokens.tolist(), strict=True):
                one.take([token])
        return self.writer.mask(logits, lists)
