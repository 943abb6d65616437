"""Bodies of the HTTP interface, and settings of a service."""

import ipaddress
import os
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
    model_validator,
)

from convrec.base.errors import UserError
from convrec.inference.lists import Question
from recipes.serving.keys import KEY_VARIABLE

Number = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]  # the range of catalogs
ItemName = Annotated[str, StringConstraints(min_length=1, max_length=1000)] | Number  # an id, or `Title (Year)`
Value = StrictBool | StrictInt | StrictFloat | Annotated[str, StringConstraints(max_length=100_000)]  # in a column
CustomId = Annotated[str, StringConstraints(min_length=1, max_length=200)]
MAX_NAMES = 10_000  # items in a list of a request: each is looked up
MAX_ALLOWED = 50_000  # items in `allow`, which may be a shop's whole stock
MAX_DRAIN_SECONDS = 300  # the command's supervisor waits a little longer
MAX_COLUMNS = 1000  # of an item
MAX_TURNS = 10_000  # that are parsed; --max-turns limits how many are answered
FRONT = "front"  # the deployment that speaks HTTP


class Strict(BaseModel):
    """A body without unknown fields: a misspelt `exclude` must not be ignored."""

    # a length bound makes pydantic check texts: half of a surrogate pair, which could not be encoded, is refused
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), str_min_length=0)


class Turn(Strict):
    """A turn of a conversation."""

    role: Literal["user", "assistant"]
    content: str


def _limit_conditions(where: Any) -> Any:
    """Limit the conditions: pydantic reports each wrong value once per possible type, gigabytes for millions."""
    if isinstance(where, dict):
        parts = [where, *(value for value in where.values() if isinstance(value, list | dict))]
        if sum(map(len, parts)) > MAX_NAMES:
            raise ValueError(f"more than {MAX_NAMES:,} conditions and values; leave some out")
    return where


class RecommendationRequest(Strict):
    """A request for a list."""

    conversation: str | Annotated[list[Turn], Field(fail_fast=True, max_length=MAX_TURNS)] = Field(
        description="the user's message, or all turns; the last is the user's"
    )
    k: StrictInt = Field(default=20, ge=1, description="number of items")
    seen: list[ItemName] = Field(
        default=[], max_length=MAX_NAMES, description="items that the user knows, as ids or `Title (Year)`; left out"
    )
    allow: Annotated[list[ItemName], Field(fail_fast=True, max_length=MAX_ALLOWED)] | None = Field(
        default=None, description="only these items; null: the whole catalog"
    )
    exclude: list[ItemName] = Field(default=[], max_length=MAX_NAMES, description="items to leave out")
    where: Annotated[dict[str, Value | list[Value] | dict[str, Value]] | None, BeforeValidator(_limit_conditions)] = (
        Field(
            default=None,
            description="conditions on catalog columns: a value, a list of alternatives, or `min` and `max`",
        )
    )
    ignore_case: StrictBool = Field(default=False, description="ignore case and white space in texts of `where`")
    why: StrictBool = Field(default=False, description="add a sentence of explanation to each item, if there is one")
    liked: list[ItemName] = Field(
        default=[], max_length=MAX_NAMES, description="items that the user liked, for `why`; not left out"
    )
    may_ask: StrictBool = Field(default=False, description="allow a model trained to ask to answer with a `question`")
    user_id: CustomId | None = Field(
        default=None, description="your id of the user; stored with the list if feedback is stored"
    )
    session_id: CustomId | None = Field(default=None, description="your id of the session; stored like `user_id`")
    stream: StrictBool = Field(
        default=False, description="send server-sent events: an `item` for each item, then one `end`"
    )
    model: str | None = Field(default=None, description="name in /v1/models; null: the first")


class CatalogEntry(Strict):
    """An item of the catalog."""

    item_id: str
    title: str = Field(description="as written in lists")
    clean_title: str = Field(description="without the suffix that tells items of the same title apart")
    year: int | None
    columns: dict[str, Any] = Field(default={}, description="catalog columns chosen by `--show`")


class ListedItem(CatalogEntry):
    """An item of a list."""

    rank: int
    score: float | None = Field(description="mean log-probability of its tokens; null: the model did not list it")
    why: str | None = Field(description="a true sentence about the item; null: there is none")


class RecommendedList(Strict):
    """A list. The last event of a stream, `end`, has the same fields except for `items`; its events `item` and
    `question` have the `list_id`, too."""

    list_id: str = Field(description="unique id of the answer, for feedback")
    model: str
    model_version: str
    items: list[ListedItem]
    reason: str | None = Field(description="why there are fewer than `k` items; null: there are not")
    prompt_truncated: bool = Field(
        description="whether the conversation was too long for the model and lost its beginning"
    )
    fallback: bool = Field(description="whether the model was late, and the list is from retrieval or popularity")
    question: Question | None = Field(default=None, description="with `may_ask`, instead of items; otherwise absent")


class OpenAIModel(Strict):
    """A body in which null means absent, as OpenAI's clients send it."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, fields: Any) -> Any:
        is_object = isinstance(fields, dict)
        return {name: value for name, value in fields.items() if value is not None} if is_object else fields


Nothing = Annotated[list[Any], Field(max_length=0)]  # some clients send []


class TextPart(Strict):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(OpenAIModel):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None
    id: str | None = None
    annotations: Annotated[list[Any], Field(max_length=MAX_NAMES)] | None = None
    tool_calls: Nothing | None = None

    @property
    def text(self) -> str:
        """The content, parts joined by line breaks."""
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    """Options of a stream; others have no effect."""

    include_usage: bool = False


class TemplateSettings(Strict):
    """Arguments of the chat template."""

    enable_thinking: bool


class TextFormat(Strict):
    """The only supported response format."""

    type: Literal["text"]


class ChatRequest(OpenAIModel):
    """OpenAI's fields that have an effect here, and those that have none (NO_EFFECT), which a strict service refuses.

    Other fields are refused by name, including vLLM's own: clients must not choose templates, tools, images, processor
    arguments or regular expressions.
    """

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1, max_length=MAX_TURNS)
    model: str | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=1_000_000)
    min_p: float | None = Field(default=None, ge=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    n: int | None = Field(default=None, ge=1, le=16)
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    chat_template_kwargs: TemplateSettings | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    response_format: TextFormat | None = None
    tools: Nothing | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    functions: Nothing | None = None
    function_call: Literal["none", "auto"] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @property
    def ignored_fields(self) -> list[str]:
        """Names of the fields in the request that have no effect."""
        of_messages = {name for message in self.messages for name in message.model_fields_set & MESSAGE_NO_EFFECT}
        return sorted(self.model_fields_set & NO_EFFECT) + [f"messages: {name}" for name in sorted(of_messages)]


MESSAGE_NO_EFFECT = {"name", "id", "annotations", "tool_calls"}
NO_EFFECT = {
    *("user", "metadata", "store", "response_format", "tools", "tool_choice", "parallel_tool_calls", "functions"),
    *("function_call", "logit_bias", "modalities", "reasoning_effort", "verbosity", "service_tier"),
    *("prompt_cache_key", "safety_identifier"),
}


class FeedbackEvent(Strict):
    """A user's action on an item of a list."""

    list_id: str = Field(pattern=r"^list-[0-9a-f]{32}$", description="from an answer of /v1/recommendations")
    item_id: ItemName
    event: Literal["impression", "click", "like", "purchase", "dislike"]
    event_id: CustomId | None = Field(
        default=None, description="your id of the event; a repeated one gets 409. null: one such event per item"
    )
    user_id: CustomId | None = Field(default=None, description="your id of the user, stored with the event")
    session_id: CustomId | None = Field(default=None, description="your id of the session, stored with the event")
    time: AwareDatetime | None = Field(default=None, description="ISO 8601 with a time zone; null: now")


class OpenFields(BaseModel):
    """A body whose other fields are further columns of the catalog."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Value | Annotated[list[str], Field(fail_fast=True)] | None]

    item_id: Annotated[str, StringConstraints(min_length=1, max_length=200)] | Number

    @model_validator(mode="before")
    @classmethod
    def _limit_fields(cls, fields: Any) -> Any:
        """Limit the fields: pydantic reports each wrong value once per possible type, gigabytes for millions."""
        if isinstance(fields, dict) and len(fields) > MAX_COLUMNS:
            raise ValueError(f"more than {MAX_COLUMNS} fields; leave some out")
        return fields


class ItemRecord(OpenFields):
    """An item to add or replace."""

    title: Annotated[str, StringConstraints(min_length=1, max_length=500)]
    year: StrictInt | None = Field(default=None, ge=-9999, le=9999)


class ItemFields(OpenFields):
    """Changed fields of an item; omitted fields stay, null removes a value."""

    title: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = None
    year: StrictInt | None = Field(default=None, ge=-9999, le=9999)


class CatalogItems(Strict):
    """Items to add or replace."""

    items: Annotated[list[ItemRecord], Field(fail_fast=True, min_length=1, max_length=MAX_NAMES)]


class CatalogFields(Strict):
    """Changes of items."""

    items: Annotated[list[ItemFields], Field(fail_fast=True, min_length=1, max_length=MAX_NAMES)]


class CatalogIds(Strict):
    """Items to remove."""

    item_ids: list[ItemName] = Field(min_length=1, max_length=MAX_NAMES)


class CatalogChange(Strict):
    """The result of a change of the catalog."""

    model: str
    catalog_items: int = Field(description="number of items in the catalog after the change")
    absent: list[str] = Field(default=[], description="ids to remove that were not in the catalog")
    blanked: dict[str, list[str]] = Field(
        default={},
        description="item_id -> columns whose value this PUT has removed; PATCH would keep them",
    )


class CatalogPage(Strict):
    """A page of the catalog."""

    model: str
    items: list[CatalogEntry] = Field(description="ordered by id")
    next: str | None = Field(description="`after` for the next page; null: this is the last")


class Filter(Strict):
    """A condition, with the label that the page shows for it."""

    label: str = Field(min_length=1, max_length=60)
    where: dict[str, Value | list[Value] | dict[str, Value]] = Field(min_length=1)


class ModelCard(Strict):
    """A model; `id` to `owned_by` are OpenAI's fields."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "convrec"
    version: str
    catalog_items: int | None = Field(description="number of items; null: a judge, which has no catalog")
    max_items: int | None = Field(description="largest k of a list; null: a judge")
    max_turns: int = Field(description="largest number of turns of a conversation")
    filters: list[Filter] = Field(default=[], description="conditions that the page offers, chosen by the operator")
    keeps_feedback: bool = Field(
        description="whether lists are stored with their conversations, and feedback is accepted"
    )


class ModelList(Strict):
    """The models of a service, in OpenAI's form."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Limits(Strict):
    """Limits of requests; exceeding one gives a 4xx that names it."""

    max_concurrent: int = Field(default=256, ge=1, description="largest number of concurrent requests; more get 429")
    # The default has room for 10,000 items.
    max_body_bytes: int = Field(default=4 << 20, ge=1, description="largest body of a request, in bytes; more gets 413")
    max_turns: int = Field(default=100, ge=1, description="largest number of turns of a conversation; more get 400")
    max_conversation_characters: int = Field(
        default=200_000, ge=1, description="largest number of characters in all turns; more get 400"
    )
    max_items: int = Field(default=100, ge=1, description="largest number of items of a list (k); more get 400")
    timeout_seconds: float = Field(default=60.0, gt=0, description="seconds for an answer; then it gets 504")
    drain_seconds: float = Field(
        default=20.0,
        ge=0,
        le=MAX_DRAIN_SECONDS,
        description="seconds for running requests when the service is stopped; then they are cut off",
    )
    fallback_after_seconds: float | None = Field(
        default=None,
        gt=0,
        description="seconds for a list or a stream's first item; then retrieval or popularity answers (else never)",
    )


class ModelSettings(Strict):
    """Settings of a model."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    path: str
    catalog: str | None = None  # None: a judge, or another model for chat completions only
    state: str | None = None  # folder for changes of the catalog
    retrieval: str | None = None  # folder of `convrec retrieval`, whose lists are fused with the model's
    show: list[str] = []  # catalog columns to show in answers
    tensor_parallel: int = Field(default=1, ge=1)


class ServiceSettings(Strict):
    """Settings of a service: `args` in a Ray Serve file."""

    models: list[ModelSettings] = Field(min_length=1)
    limits: Limits = Limits()
    filters: list[Filter] = Field(default=[], max_length=20)  # offered on the page
    strict: bool = False  # refuse fields of chat completions that have no effect
    keys: str | None = None  # file of keys with roles (recipes/serving/keys.py), in addition to SERVE_API_KEY
    feedback: str | None = None  # folder for lists and feedback; None: nothing is stored
    loopback: bool = False  # only this machine can connect: no key is needed, other host names are refused


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_service_key(loopback: bool, keys: str | None = None) -> str | None:
    """Read the service's key from KEY_VARIABLE.

    Args:
        loopback: whether only this machine can connect.
        keys: file of further keys.

    Returns:
        The key; None if it is not set.

    Raises:
        UserError: No key is set though other machines can connect, or the key cannot be sent in an HTTP header.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    if key and not (key.isascii() and key.isprintable()):
        raise UserError(
            "serving.unencodable-key",
            f"{KEY_VARIABLE}: clients cannot send this key. Use ASCII letters, digits and punctuation.",
        )
    if not key and not keys and not loopback:
        raise UserError(
            "serving.missing-key",
            f"{KEY_VARIABLE}: not set, but other machines can reach this service. Set it to a long random text, or "
            "name --keys FILE.",
        )
    return key
