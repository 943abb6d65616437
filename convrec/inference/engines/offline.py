"""vLLM's offline engine in a replica's process: answers batches of conversations. Imports vLLM late."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from convrec.base.errors import UserError
from convrec.checkpoints.reload import reload_from_folder
from convrec.data.template import build_inference_arguments
from convrec.data.tokenizer import load_tokenizer
from convrec.inference.engines.engine_settings import engine_settings
from convrec.inference.prompts import Messages, encode_prompts

# (model, [(conversation, items that a constrained list must not contain)])
Batch = tuple[str, Sequence[tuple[Messages, list[int]]]]
# text (without special tokens, as the reward decodes it), token_ids, finish_reason ("stop" or "length"), prompt_tokens,
# prompt_truncated (the prompt keeps its instruction and the end of its conversation)
Answer = dict[str, Any]


@dataclass(frozen=True)
class PromptEncoding:
    """How conversations become tokens.

    Attributes:
        max_tokens: a longer prompt keeps its instruction and the end of its conversation.
        template_arguments: arguments of the chat template; None for those that lists need.
    """

    max_tokens: int
    template_arguments: dict[str, Any] | None


@dataclass(frozen=True)
class ConstrainedLists:
    """Constrains answers to lists of catalog items.

    Attributes:
        trie: path of the trie's file.
        num_items: number of items of every list.
    """

    trie: str
    num_items: int


@dataclass(frozen=True)
class EngineSpec:
    """The inputs of a replica's engine.

    Attributes:
        model: a Hugging Face folder or id.
        prompts: how conversations become tokens.
        max_tokens: maximum length of an answer.
        sampling: further arguments of vLLM's SamplingParams.
        seed: the engine's seed.
        tensor_parallel: GPUs of a replica.
        lists: None for free text.
    """

    model: str
    prompts: PromptEncoding
    max_tokens: int
    sampling: dict[str, Any]
    seed: int
    tensor_parallel: int = 1
    lists: ConstrainedLists | None = None


class _Bar(tqdm):
    """vLLM's progress bar, which reports updates to a callback instead of drawing them."""

    tell: Callable[[int], None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "file": open(os.devnull, "w"), "mininterval": 1e9})  # noqa: SIM115
        self.is_engine_bar = str(kwargs.get("desc", "")).startswith("Processed")

    def update(self, n: float | None = 1) -> bool | None:
        if self.is_engine_bar and n:
            type(self).tell(int(n))
        return super().update(n)


def load(spec: EngineSpec) -> Callable[[Batch, Callable[[int], None]], list[Answer]]:
    """Start the engine.

    Returns:
        A function that answers a batch. If the batch names another model, its weights are loaded into the engine first;
        the models must differ in nothing else.

    Raises:
        UserError: the model cannot be loaded, or its context has no room for a prompt and max_tokens.
    """
    tokenizer, context = load_tokenizer(spec.model)
    template_arguments = build_inference_arguments(tokenizer, spec.prompts.template_arguments)
    limit = min(spec.prompts.max_tokens, context - spec.max_tokens)
    if limit < 1:
        raise UserError(
            "engine.context-too-short",
            f"model {spec.model}: its context of {context} tokens has no room for {spec.max_tokens} new tokens and a "
            "prompt. Lower max_tokens.",
        )
    _, settings = engine_settings(spec.tensor_parallel)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # no EngineCore process that could outlive this one

    from vllm import LLM, SamplingParams

    if spec.lists:
        from convrec.features.constrained.vllm_lists import PROCESSOR, TRIE

        settings |= {"logits_processors": [PROCESSOR], "additional_config": {TRIE: spec.lists.trie}}
    engine = LLM(
        model=spec.model,
        max_model_len=limit + spec.max_tokens,
        seed=spec.seed,
        disable_log_stats=True,
        **settings,
    )
    try:
        sampling = SamplingParams(max_tokens=spec.max_tokens, skip_special_tokens=True, **spec.sampling)
    except (TypeError, ValueError) as error:
        raise UserError("engine.sampling", f"sampling {spec.sampling}: {error}") from None

    loaded_model = spec.model

    def answer(batch: Batch, tell: Callable[[int], None]) -> list[Answer]:
        nonlocal loaded_model
        model, tasks = batch
        if model != loaded_model:
            engine.collective_rpc(reload_from_folder, args=(model,))
            engine.reset_prefix_cache()  # it was computed with the other weights
            loaded_model = model
        conversations = [conversation for conversation, _ in tasks]
        prompts, truncated = encode_prompts(tokenizer, conversations, limit, template_arguments)
        inputs = [{"prompt_token_ids": tokens} for tokens in prompts]
        parameters = sampling
        if spec.lists:
            parameters = [_add_constraint(sampling, spec.lists, excluded) for _, excluded in tasks]
        _Bar.tell = staticmethod(tell)
        outputs = engine.generate(inputs, parameters, use_tqdm=_Bar)
        return [
            _make_answer(output, len(tokens), is_cut)
            for tokens, is_cut, output in zip(prompts, truncated, outputs, strict=True)
        ]

    return answer


def _make_answer(output: Any, prompt_tokens: int, is_truncated: bool) -> Answer:
    """Return the answer in vLLM's output for one prompt."""
    (completion,) = output.outputs
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": str(completion.finish_reason),
        "prompt_tokens": prompt_tokens,
        "prompt_truncated": is_truncated,
    }


def _add_constraint(sampling: Any, lists: ConstrainedLists, exclude: list[int]) -> Any:
    from convrec.features.constrained.vllm_lists import EXCLUDE, ITEMS

    parameters = sampling.clone()
    parameters.extra_args = {ITEMS: lists.num_items, EXCLUDE: exclude}
    return parameters
