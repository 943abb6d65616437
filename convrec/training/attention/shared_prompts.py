"""Compute a prompt once for all of its responses.

verl repeats a prompt in the row of each of its responses, and pads the rows. Here a micro-batch is one sequence
instead: each prompt once, followed by its responses, without padding. Only attention looks at more than one token, and
only it changes: a prompt attends to itself, a response to its prompt and itself. The hidden states go back to the rows'
places, so nothing else notices.

The idea is PrefixGrouper's (arXiv 2506.05433), for which verl has a setting that its engine does not read.

Shapes: B rows of at most T tokens, S tokens of the sequence; H heads, K heads of keys and values (H is a multiple of
K), D size of a head or of a hidden state; R responses of a prompt, P tokens of a prompt, L tokens of its longest
response.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from convrec.data.families import FAMILIES

KEYWORD = "shared_prompts"  # of the model's forward pass, passed on to its attention
SHARED_LENGTH = "shared_prompt_length"  # a batch's setting: rows of at most so many tokens share prompts
# Rows that are padded to one length have at least this share of the longest one's length. With a larger share, the cost
# of more calls would exceed the padding that they save.
MIN_LENGTH_SHARE = 0.75
# Only models of these types were compared with their rows: others may carry state from token to token, or make masks of
# their own.
MODEL_TYPES = {family.model_type for family in FAMILIES}
# Embeddings of a position that depend on the longest row of a micro-batch, once it is longer than in pretraining.
ROPE_BY_LENGTH = {"dynamic", "longrope"}


@dataclass(frozen=True)
class Group:
    """A prompt and its responses.

    Attributes:
        prompt: number of its tokens.
        responses: number of tokens of each response, the longest first.
    """

    prompt: int
    responses: tuple[int, ...]

    @property
    def parts(self) -> tuple[int, ...]:
        """The lengths of the prompt and of the responses, in the order of the sequence."""
        return (self.prompt, *self.responses)

    def iter_alike(self) -> Iterator[list[int]]:
        """Yield the lengths of responses that are padded to one length."""
        lengths: list[int] = []
        for length in self.responses:
            if lengths and length < MIN_LENGTH_SHARE * lengths[0]:
                yield lengths
                lengths = []
            lengths.append(length)
        yield lengths


class Sequence1S:
    """A micro-batch as one sequence.

    It is no dataclass, because FSDP would give every layer a copy of one.

    Args:
        groups: in the order of the sequence.
        input_ids_1S: tokens.
        position_ids_1S: position of each token in its row.
        place_BT: index in the sequence of each token of the rows; 0 in their padding.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        input_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        place_BT: torch.Tensor,
    ) -> None:
        self.groups = groups
        self.input_ids_1S = input_ids_1S
        self.position_ids_1S = position_ids_1S
        self.place_BT = place_BT
        self._calls = 0  # layers whose attention has used the groups
        self._masks: dict[Any, torch.Tensor] = {}

    def attend(
        self, query_1HSD: torch.Tensor, key_1KSD: torch.Tensor, value_1KSD: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Compute attention of one layer.

        Args:
            query_1HSD: queries.
            key_1KSD: keys.
            value_1KSD: values.
            scale: factor of the scores; None means 1 / sqrt(D).

        Returns:
            (1, S, H, D).
        """
        self._calls += 1
        sizes = [size for group in self.groups for size in group.parts]
        # `split` has one backward pass for all parts. A part has its queries, keys and values, (tokens, heads, D).
        parts = zip(
            *(tensor.squeeze(0).transpose(0, 1).split(sizes) for tensor in (query_1HSD, key_1KSD, value_1KSD)),
            strict=True,
        )
        outputs = []
        for group in self.groups:
            query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in next(parts))
            output_1HPD = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
            outputs.append(output_1HPD.squeeze(0).transpose(0, 1))
            for lengths in group.iter_alike():
                rows = zip(*(next(parts) for _ in lengths), strict=True)
                padded = [pad_sequence(list(of_rows), batch_first=True).transpose(1, 2) for of_rows in rows]
                outputs += self._attend_to_prompt((key, value), padded, lengths, scale)
        return torch.cat(outputs).unsqueeze(0)

    def _attend_to_prompt(
        self,
        prompt: Sequence[torch.Tensor],
        padded: Sequence[torch.Tensor],
        lengths: Sequence[int],
        scale: float | None,
    ) -> list[torch.Tensor]:
        """Return the attention of each response to its prompt and itself.

        Args:
            prompt: its keys and values, (1, K, P, D).
            padded: queries, keys and values of the responses, (R, H or K, L, D).
            lengths: tokens of each response.
            scale: factor of the scores.

        Returns:
            For each response (tokens, H, D).
        """
        query_RHLD, *own = padded
        key, value = (
            torch.cat([of_prompt.expand(len(query_RHLD), -1, -1, -1), of_responses], dim=2)
            for of_prompt, of_responses in zip(prompt, own, strict=True)
        )
        mask_LT = self._make_mask(prompt[0].shape[2], query_RHLD)
        output_RHLD = scaled_dot_product_attention(
            query_RHLD, key, value, attn_mask=mask_LT, scale=scale, enable_gqa=True
        )
        rows = output_RHLD.transpose(1, 2).unbind()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    def _make_mask(self, prompt: int, query_RHLD: torch.Tensor) -> torch.Tensor:
        """Return what is added to the scores of L tokens after a prompt: 0, or -inf for later tokens.

        The padding of a response comes after its tokens, so none of them sees it. All layers share the mask.
        """
        length = query_RHLD.shape[2]
        key = (prompt, length, query_RHLD.dtype)
        if key not in self._masks:
            mask = query_RHLD.new_full((length, prompt + length), float("-inf"))
            self._masks[key] = mask.triu(prompt + 1)
        return self._masks[key]

    def compute_hidden_states(self, body: Any) -> torch.Tensor:
        """Return the hidden states of the rows, (B, T, D).

        Args:
            body: transformers' model without its head.

        Raises:
            RuntimeError: a layer has not used the groups.
        """
        device = next(body.parameters()).device
        hidden_1SD = body(
            input_ids=self.input_ids_1S.to(device),
            position_ids=self.position_ids_1S.to(device),
            # transformers makes no mask if it gets one with four dimensions; `attend` does not read it
            attention_mask=torch.zeros(1, 1, 1, 1, device=device),
            use_cache=False,
            **{KEYWORD: self},
        ).last_hidden_state
        if self._calls != body.config.get_text_config().num_hidden_layers:
            raise RuntimeError(f"{type(body).__name__}: {self._calls} layers took {KEYWORD}")
        hidden_flat = hidden_1SD.squeeze(0).index_select(0, self.place_BT.flatten().to(device))
        return hidden_flat.view(*self.place_BT.shape, -1)


def lay_out(batch: TensorDict, padded_length: int) -> Sequence1S:
    """Lay a micro-batch out as one sequence.

    Args:
        batch: the micro-batch, nested, with `input_ids` (prompt and response) and `responses`.
        padded_length: T.
    """
    rows = batch["input_ids"].unbind()
    lengths = [len(response) for response in batch["responses"].unbind()]
    rows_of_prompt: dict[tuple[int, ...], list[int]] = {}
    for number, prompt in enumerate(read_prompts(batch)):
        rows_of_prompt.setdefault(prompt, []).append(number)
    groups, tokens, positions = [], [], []
    place_BT = torch.zeros(len(rows), padded_length, dtype=torch.long)
    start = 0
    for prompt, numbers in rows_of_prompt.items():
        numbers.sort(key=lambda number: -lengths[number])
        group = Group(len(prompt), tuple(lengths[number] for number in numbers))
        end = start + group.prompt
        for number in numbers:
            place_BT[number, : group.prompt] = start + torch.arange(group.prompt)
            place_BT[number, group.prompt : len(rows[number])] = end + torch.arange(lengths[number])
            end += lengths[number]
        groups.append(group)
        tokens += [rows[numbers[0]][: group.prompt], *(rows[number][group.prompt :] for number in numbers)]
        positions += [torch.arange(group.prompt)]
        positions += [group.prompt + torch.arange(length) for length in group.responses]
        start = end
    return Sequence1S(
        groups=groups,
        input_ids_1S=torch.cat(tokens).unsqueeze(0),
        position_ids_1S=torch.cat(positions).unsqueeze(0),
        place_BT=place_BT,
    )


def read_prompts(batch: TensorDict) -> list[tuple[int, ...]]:
    """Return the prompt of each row of a nested batch, as tokens."""
    rows = zip(batch["input_ids"].unbind(), batch["responses"].unbind(), strict=True)
    return [tuple(row[: len(row) - len(response)].tolist()) for row, response in rows]


def group_by_prompt(prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Split rows into groups of at most `max_tokens` tokens, those of a prompt next to each other, long ones first.

    Args:
        prompts: the prompt of each row.
        lengths: tokens of each row, with its prompt. A prompt counts once for each response, since the responses, whose
            logits are all in memory, may be most of a group.
        max_tokens: limit of a group.

    Returns:
        Indices of the rows of each group.
    """
    longest: dict[tuple[int, ...], int] = {}
    for prompt, length in zip(prompts, lengths, strict=True):
        longest[prompt] = max(length, longest.get(prompt, 0))
    groups: list[list[int]] = []
    room = 0
    for row in sorted(range(len(prompts)), key=lambda row: (-longest[prompts[row]], prompts[row])):
        if lengths[row] > room:
            groups.append([])
            room = max_tokens
        groups[-1].append(row)
        room -= lengths[row]
    return groups


def find_longest(body: Any) -> int:
    """Return how many tokens a row may have for a model to share prompts; 0 if it cannot.

    Args:
        body: transformers' model without its head.
    """
    config = body.config.get_text_config()
    is_known = config.model_type in MODEL_TYPES and config._attn_implementation == "sdpa"
    if not is_known or config.attention_dropout or getattr(config, "use_bidirectional_attention", False):
        return 0
    limits = [getattr(config, "sliding_window", None) or sys.maxsize]
    rope_types = body.rotary_emb.rope_type
    if ROPE_BY_LENGTH & set(rope_types.values() if isinstance(rope_types, dict) else [rope_types]):
        known = (config.rope_parameters.get("original_max_position_embeddings"), config.max_position_embeddings)
        limits += [positions for positions in known if positions]
    return min(limits)


class PromptSharing:
    """Computes the hidden states of a model's micro-batches, with shared prompts where the model allows it.

    Args:
        body: transformers' model without its head.
        is_wanted: share prompts.

    Attributes:
        longest: rows of more tokens do not share prompts.
    """

    def __init__(self, body: Any, is_wanted: bool) -> None:
        self.body = body
        self.longest = find_longest(body) if is_wanted else 0
        if self.longest:
            register()

    def lay_out(self, batch: TensorDict, padded_length: int | None) -> Sequence1S | None:
        """Lay a micro-batch out as one sequence.

        Args:
            batch: the micro-batch, nested.
            padded_length: tokens of a padded row; None if rows are packed.

        Returns:
            None if it is computed in rows: without responses, packed, or with a row that is too long.
        """
        if padded_length is None or padded_length > self.longest or batch.get("responses", None) is None:
            return None
        return lay_out(batch, padded_length)

    def compute_hidden_states(self, sequence: Sequence1S | None, **inputs: Any) -> torch.Tensor:
        """Return the hidden states of the rows, (B, T, D).

        Args:
            sequence: result of `lay_out`.
            **inputs: of the body's forward pass in rows.
        """
        if sequence is not None:
            return sequence.compute_hidden_states(self.body)
        hidden: torch.Tensor = self.body(**inputs, use_cache=False).last_hidden_state
        return hidden


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute transformers' `sdpa`, or that of a sequence of shared prompts if the model's forward pass has one.

    The interface is that of transformers: query (1, H, S, D), key and value (1, K, S, D).

    Returns:
        (1, S, H, D), and None for the weights.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    sequence = options.pop(KEYWORD, None)
    if sequence is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    return sequence.attend(query, key, value, scaling), None


def register() -> None:
    """Let `sdpa` of transformers know shared prompts in this process; a second call has no effect."""
    from transformers import AttentionInterface

    AttentionInterface.register("sdpa", attention_forward)
