"""Options of `convrec serve`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from cyclopts import Parameter

from convrec.base.options import Group, Integer, NonNegativeNumber, PositiveInteger, PositiveNumber, Repeated
from convrec.inference.options import MentionOptions

NamedModels = Annotated[Sequence[str], Repeated, Parameter(metavar="[NAME=]MODEL")]


@Group
@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """Limits of requests: the fields of `recipes.serving.schema.Limits`."""

    max_concurrent: PositiveInteger = 256
    """largest number of concurrent requests; more get 429"""
    max_body_bytes: PositiveInteger = 4 << 20
    """largest body of a request, in bytes; more gets 413"""
    max_turns: PositiveInteger = 100
    """largest number of turns of a conversation; more get 400"""
    max_conversation_characters: PositiveInteger = 200_000
    """largest number of characters in all turns; more get 400"""
    max_items: PositiveInteger = 100
    """largest number of items of a list (k); more get 400"""
    timeout_seconds: PositiveNumber = 60.0
    """seconds for an answer; then it gets 504"""
    drain_seconds: NonNegativeNumber = 20.0
    """seconds for running requests when the service is stopped; then they are cut off"""
    fallback_after_seconds: PositiveNumber | None = None
    """seconds for a list or a stream's first item; then retrieval or popularity answers (else never)"""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Serve trained models: recommendations and chat completions over HTTP, and a chat page at /.

    MODEL is a run folder (its best checkpoint; RUN@last: the newest), RUN/global_step_N, a LoRA adapter, or a Hugging
    Face folder or id; NAME=MODEL gives it a name. Several --model make one service with several models, with one
    --catalog for all or one for each, in the same order. --judge serves a model for chat completions only. If other
    machines can reach the service (--host), the variable SERVE_API_KEY must hold a key, which requests send as
    `Authorization: Bearer KEY`. Ctrl-C stops it. docs/how-to/serve.md

    convrec serve --model outputs/demo/rank_grpo \\
        --catalog outputs/demo/data/catalog.parquet
    convrec serve --judge checkpoints/judge
    """

    COMMAND: ClassVar[str] = "serve"

    model: NamedModels = ()
    """model that recommends; repeatable"""
    catalog: Annotated[Sequence[str], Repeated, Parameter(metavar="FILE")] = ()
    """catalog of the model: .parquet of `convrec data`, or .pkl"""
    judge: NamedModels = ()
    """judge, or any model, for chat completions only"""
    retrieval: Annotated[Sequence[Path], Repeated, Parameter(metavar="FOLDER")] = ()
    """folder of `convrec retrieval fit`, whose lists are fused with the model's"""
    host: str = "127.0.0.1"
    """address to bind to"""
    port: Integer = 8000
    """port to bind to"""
    replicas: PositiveInteger = 1
    """number of engines per model"""
    tensor_parallel: PositiveInteger = 1
    """number of GPUs per engine"""
    state: Path = Path("outputs/serve")
    """folder for changes of the catalogs, with a folder per model, and for logs and feedback"""
    keys: Annotated[Path | None, Parameter(metavar="FILE")] = None
    """YAML file of keys, each with a name, a role (read, feedback, admin) and a rate limit"""
    filter: Annotated[Sequence[str], Repeated, Parameter(metavar="LABEL={...}")] = ()
    """filter on the page, a label and its `where`: 'Below 20={"price": {"max": 20}}'; repeatable"""
    strict: bool = False
    """refuse fields of chat completions that have no effect (tools: [], ...)"""
    feedback: bool = False
    """store conversations, lists and POST /v1/feedback in --state"""
    mentions: MentionOptions = field(default_factory=MentionOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)
