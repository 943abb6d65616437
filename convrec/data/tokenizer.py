"""A model's tokenizer and config, found fit for each other before anything expensive starts.

Without tokenizer.json transformers makes a tokenizer of the special tokens alone, which reads any text as nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from convrec.base.errors import UserError, one_line
from convrec.data import template_trial
from convrec.data.chat import encode, render_prompt, special_tokens
from convrec.data.template import freeze_date, turn_end_id

SMALLEST = 0.5  # of the embedding's rows; padding to a multiple of 64 or 128 leaves far more
ASKED = "Which films are like Heat (1995)? Not item 42, please."
TITLES = 1000  # of a catalog are tried
TEMPLATE_SECONDS = 30.0  # in which a chat template must end


def load_tokenizer(
    model: str,
    given_as: str = "model ",
    *,
    tokenizer_path: str | None = None,
    chat_template: str | None = None,
    titles: Sequence[str] = (),
) -> tuple[Any, int]:
    """A model's tokenizer, and its context in tokens (2**20 where its config says none).

    given_as: what stands before the model in messages. tokenizer_path, chat_template: in place of the model's own.
    titles: what the model is to write.

    Raises UserError for what transformers cannot read or has no code for, a tokenizer that is another model's or not
    whole, and a chat template that is missing, fails or does not end.
    """
    from transformers import AutoConfig, AutoTokenizer

    name = f"{given_as}{model}"
    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)  # else it asks on the terminal
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_path or model, trust_remote_code=False)
    except Exception as error:  # every library that reads a part of it has errors of its own
        what = (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0]
        raise UserError(
            f"{name}: {what}. Give a folder or an id that can be loaded here, of a model type that transformers has "
            "(a model's own code, its auto_map, is not run)"
        ) from None
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise UserError(
            f"{name}: its tokenizer is a tekken.json or a tokenizer.model alone; ranks are read off the tokens of a "
            "tokenizer.json: take a repository of the model that has one, and a chat template"
        )
    _check_ids(name, tokenizer, config.get_text_config())
    check_text(name, tokenizer, titles)
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    _check_template(name, tokenizer)
    freeze_date(tokenizer)
    return tokenizer, int(getattr(config, "max_position_embeddings", 0) or 2**20)


def _check_ids(name: str, tokenizer: Any, config: Any) -> None:
    """Ids that the embedding lacks, far too few of them, or a word of the language where the model ends its answers."""
    rows = config.vocab_size
    # Special tokens above the rows never come up in a text, as the image of Gemma 3's small models without images.
    special_above = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special and id_ >= rows}
    size = max((id_ for id_ in tokenizer.get_vocab().values() if id_ not in special_above), default=-1) + 1
    if not SMALLEST * rows <= size <= rows:
        raise UserError(
            f"{name}: a tokenizer of {size} ids for an embedding of {rows} rows (config.json, vocab_size): another "
            "model's, or tokenizer.json is missing; put all of the model's own tokenizer files there"
        )
    ends = _as_list(config.eos_token_id)
    special = set(tokenizer.convert_tokens_to_ids(special_tokens(tokenizer)))
    # Not the tokenizer's own eos: chat models have end of text here and end of turn there, on purpose
    if special and ends and not special & {*ends}:
        raise UserError(
            f"{name}: token {ends[0]}, with which the model ends its answers (config.json, eos_token_id), is no "
            "special token of its tokenizer: another model's; put the model's own there"
        )


def stop_token_ids(tokenizer: Any, model: str) -> list[int]:
    """Return the ids at which vLLM stops: the tokenizer's end of sequence, and those of the model's generation config.

    A model without a generation_config.json has those of its config.json, as vLLM reads it.
    """
    from transformers import AutoConfig, GenerationConfig

    try:
        configured = GenerationConfig.from_pretrained(model)
    except OSError:
        configured = GenerationConfig.from_model_config(AutoConfig.from_pretrained(model, trust_remote_code=False))
    ids = {tokenizer.eos_token_id, *_as_list(configured.eos_token_id)}
    return sorted(id_ for id_ in ids if id_ is not None)


def check_stops(name: str, tokenizer: Any, model: str, arguments: Mapping[str, Any]) -> None:
    """Raise UserError where answers would not end, or would end in the middle.

    Args:
        name: how messages call the model.
        model: its folder or id.
        arguments: of the chat template, as the run passes them.
    """
    try:
        stops = stop_token_ids(tokenizer, model)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{name}: generation_config.json cannot be read ({one_line(error)}); mend or remove it"
        ) from None
    special = set(tokenizer.convert_tokens_to_ids(special_tokens(tokenizer)))
    for stop in stops:
        token = tokenizer.convert_ids_to_tokens(stop) if stop < _size(tokenizer) else None
        if token is None:
            raise UserError(
                f"{name}: it stops at token {stop} (eos_token_id), which its tokenizer does not have: write ids of its "
                "own into generation_config.json, or config.json where there is none"
            )
        if special and stop not in special:
            raise UserError(
                f"{name}: it stops at token {stop}, {token!r} (eos_token_id), which is no special token: answers would "
                "end in the middle of a text. Take it out of generation_config.json, or config.json where there is none"
            )
    end = turn_end_id(tokenizer, arguments)
    if end is None:
        raise UserError(
            f"{name}: its chat template writes nothing after an assistant's turn, so that a trained model would never "
            "stop: give it one that does (custom_chat_template of the model's section)"
        )
    if end not in stops:
        token = tokenizer.convert_ids_to_tokens(end)
        ids = sorted({*stops, end})
        raise UserError(
            f"{name}: its chat template ends an assistant's turn with {token!r} ({end}), at which nothing stops: every "
            f'list would be cut at its limit. Write "eos_token_id": {ids} into generation_config.json of a copy of the '
            "model, or take its instruct version"
        )


def _size(tokenizer: Any) -> int:
    """One more than the largest id, which is more than the number of tokens where ids are left out."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def _as_list(ids: int | list[int] | None) -> list[int]:
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def check_text(name: str, tokenizer: Any, titles: Sequence[str]) -> None:
    """What it encodes it decodes: a text, and most of the titles. Raises UserError."""
    tried = titles[:: max(1, len(titles) // TITLES)]
    read = {text: tokenizer.decode(encode(tokenizer, text)) for text in (*tried, ASKED)}
    lost = [text for text, back in read.items() if _letters(text) != _letters(back)]
    if ASKED in lost or len(lost) > len(tried) / 2:
        raise UserError(
            f"{name}: its tokenizer cannot write {lost[0]!r}, which comes back as {read[lost[0]]!r}: its files are "
            "missing or another language's; put all of the model's own there, or take a model of this language"
        )


def _letters(text: str) -> str:
    """And digits; spaces, cases and signs are a tokenizer's own affair."""
    return "".join(filter(str.isalnum, text)).casefold()


def _check_template(name: str, tokenizer: Any) -> None:
    if not tokenizer.chat_template:
        raise UserError(f"{name}: its tokenizer has no chat template; use an instruction-tuned model.")
    problem = _template_problem(tokenizer)
    if problem:
        raise UserError(f"{name}: its chat template {problem}; put the model's own there")


def _template_problem(tokenizer: Any) -> str:
    """Return why the chat template cannot be used; "" where it can."""
    try:
        template = tokenizer.get_chat_template()
        problem = template_trial.find_problem(template, tokenizer.special_tokens_map, TEMPLATE_SECONDS)
        if problem:
            return problem
        text = render_prompt(tokenizer, [{"role": "user", "content": ASKED}])
    except Exception as error:  # what a template raises
        return f"fails ({error})"
    return "" if ASKED in text else "leaves out what is asked"
