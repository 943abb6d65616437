"""The bodies that the HTTP interface takes and gives, and the settings of a service."""

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

Number = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]  # as catalogs have them
ItemName = Annotated[str, StringConstraints(min_length=1, max_length=1000)] | Number  # an id, or `Title (Year)`
Value = StrictBool | StrictInt | StrictFloat | Annotated[str, StringConstraints(max_length=100_000)]  # of a column
OwnId = Annotated[str, StringConstraints(min_length=1, max_length=200)]
MOST_NAMES = 10_000  # of a request's lists of items: each is looked up
MOST_ALLOWED = 50_000  # of `allow`, which can be all that a shop has in stock
MOST_DRAIN_SECONDS = 300  # the command's supervisor waits a little longer
MOST_COLUMNS = 1000  # of an item
MOST_TURNS = 10_000  # that are read at all; --max-turns says how many are answered
FRONT = "front"  # the deployment before those of the models


class Strict(BaseModel):
    """Unknown fields are refused: a misspelt `exclude` must not be ignored."""

    # a bound of length has texts looked at: half of a surrogate pair is refused, which could not be written again
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), str_min_length=0)


class Turn(Strict):
    role: Literal["user", "assistant"]
    content: str


def _few(where: Any) -> Any:
    """A wrong one is an error for each type that it could have: of millions, gigabytes."""
    if isinstance(where, dict):
        parts = [where, *(one for one in where.values() if isinstance(one, list | dict))]
        if sum(map(len, parts)) > MOST_NAMES:
            raise ValueError(f"more than {MOST_NAMES:,} conditions and values; leave some out")
    return where


class RecommendationRequest(Strict):
    conversation: str | Annotated[list[Turn], Field(fail_fast=True, max_length=MOST_TURNS)] = Field(
        description="what the user said, or the turns; the last is the user's"
    )
    k: StrictInt = Field(default=20, ge=1, description="items wanted")
    seen: list[ItemName] = Field(
        default=[], max_length=MOST_NAMES, description="what the user knows already, as ids or `Title (Year)`: left out"
    )
    allow: Annotated[list[ItemName], Field(fail_fast=True, max_length=MOST_ALLOWED)] | None = Field(
        default=None, description="only these; null: the whole catalog"
    )
    exclude: list[ItemName] = Field(default=[], max_length=MOST_NAMES, description="not these")
    where: Annotated[dict[str, Value | list[Value] | dict[str, Value]] | None, BeforeValidator(_few)] = Field(
        default=None,
        description="of the catalog's columns: a value, values of which an item has one, or `min` and `max`",
    )
    ignore_case: StrictBool = Field(
        default=False, description="compare texts of `where` regardless of case and white space"
    )
    why: StrictBool = Field(default=False, description="give each item a sentence, where there is one")
    liked: list[ItemName] = Field(
        default=[], max_length=MOST_NAMES, description="what the user liked, for `why`; it is not left out"
    )
    may_ask: StrictBool = Field(
        default=False, description="a model that was trained to ask may answer with a `question`"
    )
    user_id: OwnId | None = Field(default=None, description="of your own; kept with the list where feedback is kept")
    session_id: OwnId | None = Field(default=None, description="the same, of a session")
    stream: StrictBool = Field(default=False, description="item by item, as server-sent events `item`, then one `end`")
    model: str | None = Field(default=None, description="a name of /v1/models; null: the first")


class CatalogEntry(Strict):
    item_id: str
    title: str = Field(description="as lists write it")
    clean_title: str = Field(description="without what tells it from others of that title")
    year: int | None
    columns: dict[str, Any] = Field(default={}, description="of the catalog, those of `--show`")


class ListedItem(CatalogEntry):
    rank: int
    score: float | None = Field(description="mean log-probability of its tokens; null: the model did not list it")
    why: str | None = Field(description="a sentence that is so of the item; null where there is none")


class RecommendedList(Strict):
    """The last event of a stream, `end`, is the same without `items`; each `item` has the `list_id`, too, and so has a
    `question`, an event of its own."""

    list_id: str = Field(description="another for every answer: what feedback names")
    model: str
    model_version: str
    items: list[ListedItem]
    reason: str | None = Field(description="why there are fewer items than were asked for; null where there are not")
    prompt_truncated: bool = Field(description="the conversation is longer than the model reads: its beginning was cut")
    fallback: bool = Field(description="of the retrieval, or popular items: the model's list did not come in time")
    question: Question | None = Field(default=None, description="`may_ask`: in place of items; else not there")


class OpenAIs(Strict):
    """To OpenAI null is what is not there, and its clients send such fields."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        is_object = isinstance(fields, dict)
        return {name: value for name, value in fields.items() if value is not None} if is_object else fields


Nothing = Annotated[list[Any], Field(max_length=0)]  # what clients send who have none


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ChatMessage(OpenAIs):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None
    id: str | None = None
    annotations: Annotated[list[Any], Field(max_length=MOST_NAMES)] | None = None
    tool_calls: Nothing | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    """Others than these mean nothing here."""

    include_usage: bool = False


class TemplateSettings(Strict):
    enable_thinking: bool


class TextFormat(Strict):
    type: Literal["text"]


class ChatRequest(OpenAIs):
    """OpenAI's fields that mean something here, and those that change no answer (NO_EFFECT), which a strict service
    refuses. Others are refused by name, vLLM's own among them: a template, tools, images, processor arguments and
    regular expressions are not a stranger's to choose."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(min_length=1, max_length=MOST_TURNS)
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
    def without_effect(self) -> list[str]:
        """Names of the fields that are given and change nothing."""
        of_messages = {name for message in self.messages for name in message.model_fields_set & MESSAGE_NO_EFFECT}
        return sorted(self.model_fields_set & NO_EFFECT) + [f"messages: {name}" for name in sorted(of_messages)]


MESSAGE_NO_EFFECT = {"name", "id", "annotations", "tool_calls"}
NO_EFFECT = {
    *("user", "metadata", "store", "response_format", "tools", "tool_choice", "parallel_tool_calls", "functions"),
    *("function_call", "logit_bias", "modalities", "reasoning_effort", "verbosity", "service_tier"),
    *("prompt_cache_key", "safety_identifier"),
}


class FeedbackEvent(Strict):
    """What somebody did with an item of a list."""

    list_id: str = Field(pattern=r"^list-[0-9a-f]{32}$", description="of an answer of /v1/recommendations")
    item_id: ItemName
    event: Literal["impression", "click", "like", "purchase", "dislike"]
    event_id: OwnId | None = Field(
        default=None, description="of your own; one that comes again gets 409. null: the event of the item, once"
    )
    user_id: OwnId | None = Field(default=None, description="of your own, kept with the event")
    session_id: OwnId | None = Field(default=None, description="of your own, kept with the event")
    time: AwareDatetime | None = Field(default=None, description="ISO 8601 with a zone; null: now")


class OpenFields(BaseModel):
    """The catalog's further columns are fields, too."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Value | Annotated[list[str], Field(fail_fast=True)] | None]

    item_id: Annotated[str, StringConstraints(min_length=1, max_length=200)] | Number

    @model_validator(mode="before")
    @classmethod
    def _with_few_fields(cls, fields: Any) -> Any:
        """Every wrong value is an error for each type that it could have: of millions, gigabytes."""
        if isinstance(fields, dict) and len(fields) > MOST_COLUMNS:
            raise ValueError(f"more than {MOST_COLUMNS} fields; leave some out")
        return fields


class ItemRecord(OpenFields):
    title: Annotated[str, StringConstraints(min_length=1, max_length=500)]
    year: StrictInt | None = Field(default=None, ge=-9999, le=9999)


class ItemFields(OpenFields):
    """Fields of an item that change; those that are left out stay, null takes a value away."""

    title: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = None
    year: StrictInt | None = Field(default=None, ge=-9999, le=9999)


class CatalogItems(Strict):
    items: Annotated[list[ItemRecord], Field(fail_fast=True, min_length=1, max_length=MOST_NAMES)]


class CatalogFields(Strict):
    items: Annotated[list[ItemFields], Field(fail_fast=True, min_length=1, max_length=MOST_NAMES)]


class CatalogIds(Strict):
    item_ids: list[ItemName] = Field(min_length=1, max_length=MOST_NAMES)


class CatalogChange(Strict):
    model: str
    catalog_items: int = Field(description="items of the catalog now")
    absent: list[str] = Field(default=[], description="ids that were to be removed and were not there")
    blanked: dict[str, list[str]] = Field(
        default={},
        description="item_id -> columns that had a value before this PUT and have none now; PATCH would keep them",
    )


class CatalogPage(Strict):
    model: str
    items: list[CatalogEntry] = Field(description="in the order of their ids")
    next: str | None = Field(description="`after` of the next page; null: this is the last")


class Filter(Strict):
    """A condition with the words that a page shows for it."""

    label: str = Field(min_length=1, max_length=60)
    where: dict[str, Value | list[Value] | dict[str, Value]] = Field(min_length=1)


class ModelCard(Strict):
    """`id` to `owned_by` are OpenAI's."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "convrec"
    version: str
    catalog_items: int | None = Field(description="null for a judge, which has no catalog")
    max_items: int | None = Field(description="of a list, the largest k; null for a judge")
    max_turns: int = Field(description="of a conversation; more are refused")
    filters: list[Filter] = Field(default=[], description="conditions of the operator's choice, which the page offers")
    keeps_feedback: bool = Field(description="whether conversations and lists are kept, and feedback is taken")


class ModelList(Strict):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Limits(Strict):
    """What a request may be. More is refused with a 4xx that names the limit."""

    max_concurrent: int = Field(default=256, ge=1, description="requests at once; more get 429")
    # room for 10,000 items
    max_body_bytes: int = Field(default=4 << 20, ge=1, description="of a request; more gets 413")
    max_turns: int = Field(default=100, ge=1, description="of a conversation; more gets 400")
    max_conversation_characters: int = Field(
        default=200_000, ge=1, description="of a conversation, all turns together; more gets 400"
    )
    max_items: int = Field(default=100, ge=1, description="of a list (k); more gets 400")
    timeout_seconds: float = Field(default=60.0, gt=0, description="for an answer; then it gets 504")
    drain_seconds: float = Field(
        default=20.0,
        ge=0,
        le=MOST_DRAIN_SECONDS,
        description="for requests that run when the service is stopped; then they are cut",
    )
    fallback_after_seconds: float | None = Field(
        default=None,
        gt=0,
        description="for a list, or a stream's first item; then the retrieval's, or popular items (else never)",
    )


class ModelSettings(Strict):
    """One model of a service."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    path: str
    catalog: str | None = None  # none: a judge, or another model that is only asked for chat completions
    state: str | None = None  # folder of the catalog's changes
    retrieval: str | None = None  # folder of `convrec retrieval`: its lists are fused with the model's
    show: list[str] = []  # columns of the catalog, for answers
    tensor_parallel: int = Field(default=1, ge=1)


class ServiceSettings(Strict):
    """What the application is built from: `args` of a Ray Serve file."""

    models: list[ModelSettings] = Field(min_length=1)
    limits: Limits = Limits()
    filters: list[Filter] = Field(default=[], max_length=20)  # that the page offers
    strict: bool = False  # fields of chat completions that change nothing are refused
    keys: str | None = None  # file of keys with roles (recipes/serving/keys.py), besides SERVE_API_KEY
    feedback: str | None = None  # folder for what was shown and what became of it; none: nothing is kept
    loopback: bool = False  # reached by this machine alone: no key is needed, other names of the host are refused


def is_loopback(host: str) -> bool:
    """Whether a host is this machine for itself alone: localhost, or an address of the loopback, written as such."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def service_key(loopback: bool, keys: str | None = None) -> str | None:
    """The variable's. keys: a file of further ones. Raises UserError for a service that anybody could use, or nobody:
    HTTP's headers have no other characters."""
    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    if key and not (key.isascii() and key.isprintable()):
        raise UserError(f"{KEY_VARIABLE}: write it in ASCII letters, digits and signs; clients could not send this key")
    if not key and not keys and not loopback:
        raise UserError(
            f"{KEY_VARIABLE} is not set: a service that others than this machine can reach needs a key (a long text), "
            "or --keys FILE"
        )
    return key
