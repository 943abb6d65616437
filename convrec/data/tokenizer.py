"""Load a model's tokenizer, and check before anything expensive starts that it matches the model's config.

Without tokenizer.json, transformers builds a tokenizer of only the special tokens, which encodes any text as nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from convrec.base.errors import UserError, one_line
from convrec.data import template_trial
from convrec.data.chat import encode, render_prompt, special_tokens
from convrec.data.template import find_turn_end_id, freeze_date

MIN_VOCABULARY = 0.5  # of the embedding's rows; padding them to a multiple of 64 or 128 leaves far more
PROBE = "Which films are like Heat (1995)? Not item 42, please."
MAX_TITLES = 1000  # that are encoded and decoded
TEMPLATE_SECONDS = 30.0  # limit for rendering a chat template


def load_tokenizer(
    model: str,
    prefix: str = "model ",
    *,
    tokenizer_path: str | None = None,
    chat_template: str | None = None,
    titles: Sequence[str] = (),
) -> tuple[Any, int]:
    """Load and check a model's tokenizer.

    Args:
        model: its folder or id.
        prefix: the variable or option that errors name, such as `MODEL_PATH=`.
        tokenizer_path: another tokenizer than the model's own.
        chat_template: another template than the model's own.
        titles: texts that the model has to write.

    Returns:
        The tokenizer, and the model's context length in tokens (2**20 if its config has none).

    Raises:
        UserError: transformers cannot load the model, the tokenizer is incomplete or another model's, or the chat
            template is missing, fails or does not terminate.
    """
    from transformers import AutoConfig, AutoTokenizer

    name = f"{prefix}{model}"
    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)  # the default asks on the terminal
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_path or model, trust_remote_code=False)
    except Exception as error:  # every library that reads a part of the model raises its own errors
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0]
        raise UserError(
            "tokenizer.unreadable-model",
            f"{name}: {problem}. Give a folder or an id that this machine can load, of a model type that transformers "
            "supports (a model's own code, its auto_map, is not run)",
        ) from None
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise UserError(
            "tokenizer.missing-tokenizer-json",
            f"{name}: the model has only a tekken.json or tokenizer.model, but ranks are read from the tokens of a "
            "tokenizer.json. Use a repository of the model that has one, and a chat template",
        )
    _check_ids(name, tokenizer, config.get_text_config())
    check_text(name, tokenizer, titles)
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    _check_template(name, tokenizer)
    freeze_date(tokenizer)
    return tokenizer, int(getattr(config, "max_position_embeddings", 0) or 2**20)


def _check_ids(name: str, tokenizer: Any, config: Any) -> None:
    """Check that the ids fit the embedding, and that the model ends its answers with a special token."""
    rows = config.vocab_size
    # Special tokens beyond the rows never occur in text, such as the image token of Gemma 3's text-only models.
    special_above = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special and id_ >= rows}
    size = max((id_ for id_ in tokenizer.get_vocab().values() if id_ not in special_above), default=-1) + 1
    if not MIN_VOCABULARY * rows <= size <= rows:
        raise UserError(
            "tokenizer.wrong-size",
            f"{name}: the tokenizer has {size} ids, the embedding {rows} rows (config.json, vocab_size): it belongs to "
            "another model, or tokenizer.json is missing. Use all of the model's own tokenizer files",
        )
    ends = _to_list(config.eos_token_id)
    special = set(tokenizer.convert_tokens_to_ids(special_tokens(tokenizer)))
    # The tokenizer's own eos may differ: chat models deliberately have end of text here and end of turn there.
    if special and ends and not special & {*ends}:
        raise UserError(
            "tokenizer.wrong-eos",
            f"{name}: the model ends its answers with token {ends[0]} (config.json, eos_token_id), which is not a "
            "special token of the tokenizer: it belongs to another model. Use the model's own tokenizer",
        )


def stop_token_ids(tokenizer: Any, model: str) -> list[int]:
    """Return the ids at which vLLM stops: the tokenizer's eos, and those in the model's generation_config.json.

    A model without that file has those in config.json, as in vLLM.

    Args:
        tokenizer: the model's.
        model: its folder or id.

    Returns:
        The ids, each once, in ascending order.

    Raises:
        OSError, ValueError: generation_config.json, or config.json in its place, is not readable.
    """
    from transformers import AutoConfig, GenerationConfig

    try:
        configured = GenerationConfig.from_pretrained(model)
    except OSError:
        configured = GenerationConfig.from_model_config(AutoConfig.from_pretrained(model, trust_remote_code=False))
    ids = {tokenizer.eos_token_id, *_to_list(configured.eos_token_id)}
    return sorted(id_ for id_ in ids if id_ is not None)


def check_stops(name: str, tokenizer: Any, model: str, arguments: Mapping[str, Any]) -> None:
    """Check that answers end, and end only after a turn.

    Args:
        name: what error messages call the model.
        tokenizer: the model's, with its chat template.
        model: its folder or id.
        arguments: the chat template's, as the run passes them.

    Raises:
        UserError: a stop token is unknown or an ordinary token, or no stop token ends a turn.
    """
    try:
        stops = stop_token_ids(tokenizer, model)
    except (OSError, ValueError) as error:
        raise UserError(
            "tokenizer.damaged-generation-config",
            f"{name}: generation_config.json is not readable ({one_line(error)}). Repair or remove it",
        ) from None
    special = set(tokenizer.convert_tokens_to_ids(special_tokens(tokenizer)))
    for stop in stops:
        token = tokenizer.convert_ids_to_tokens(stop) if stop < _count_ids(tokenizer) else None
        if token is None:
            raise UserError(
                "tokenizer.unknown-stop-token",
                f"{name}: the model stops at token {stop} (eos_token_id), which its tokenizer does not have. Write ids "
                "of this tokenizer into generation_config.json, or into config.json if there is none",
            )
        if special and stop not in special:
            raise UserError(
                "tokenizer.ordinary-stop-token",
                f"{name}: the model stops at token {stop}, {token!r} (eos_token_id), which is not a special token: "
                "answers would end in the middle. Remove it from generation_config.json, or from config.json if there "
                "is none",
            )
    end = find_turn_end_id(tokenizer, arguments)
    if end is None:
        raise UserError(
            "tokenizer.unfinished-turn",
            f"{name}: the chat template writes nothing after an assistant's turn, so a trained model would never stop. "
            "Set one that does (custom_chat_template in the model's section)",
        )
    if end not in stops:
        token = tokenizer.convert_ids_to_tokens(end)
        ids = sorted({*stops, end})
        raise UserError(
            "tokenizer.turn-end-not-a-stop",
            f"{name}: the chat template ends an assistant's turn with {token!r} ({end}), which is not a stop token: "
            f'every list would be truncated at its limit. Write "eos_token_id": {ids} into generation_config.json in a '
            "copy of the model, or use its instruct version",
        )


def _count_ids(tokenizer: Any) -> int:
    """Return the largest id plus one, which exceeds the number of tokens if ids are skipped."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def _to_list(ids: int | list[int] | None) -> list[int]:
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def check_text(name: str, tokenizer: Any, titles: Sequence[str]) -> None:
    """Check that a tokenizer decodes what it encodes: a sentence, and at least half of the titles.

    Args:
        name: what error messages call the model.
        tokenizer: the model's.
        titles: up to MAX_TITLES of them are tried.

    Raises:
        UserError: the text that comes back is another one.
    """
    sample = titles[:: max(1, len(titles) // MAX_TITLES)]
    decoded = {text: tokenizer.decode(encode(tokenizer, text)) for text in (*sample, PROBE)}
    lost = [text for text, back in decoded.items() if _normalize(text) != _normalize(back)]
    if PROBE in lost or len(lost) > len(sample) / 2:
        raise UserError(
            "tokenizer.lossy-text",
            f"{name}: the tokenizer cannot encode {lost[0]!r}: it comes back as {decoded[lost[0]]!r}. Files are "
            "missing, or it is for another language. Use all of the model's own files, or a model for this language",
        )


def _normalize(text: str) -> str:
    """Keep letters and digits: a tokenizer may change spaces, case and punctuation."""
    return "".join(filter(str.isalnum, text)).casefold()


def _check_template(name: str, tokenizer: Any) -> None:
    if not tokenizer.chat_template:
        raise UserError(
            "tokenizer.missing-chat-template",
            f"{name}: the tokenizer has no chat template. Use an instruction-tuned model",
        )
    problem = _find_template_problem(tokenizer)
    if problem:
        raise UserError(
            "tokenizer.unusable-chat-template",
            f"{name}: the chat template {problem}. Use the model's own chat template",
        )


def _find_template_problem(tokenizer: Any) -> str:
    """Return why the chat template cannot be used, "" if it can."""
    try:
        template = tokenizer.get_chat_template()
        problem = template_trial.find_problem(template, tokenizer.special_tokens_map, TEMPLATE_SECONDS)
        if problem:
            return problem
        text = render_prompt(tokenizer, [{"role": "user", "content": PROBE}])
    except Exception as error:  # whatever a template raises
        return f"fails ({error})"
    return "" if PROBE in text else "omits the user's message"
