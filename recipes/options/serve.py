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
    """What a request may be: the fields of `recipes.serving.schema.Limits`."""

    max_concurrent: PositiveInteger = 256
    """requests at once; more get 429"""
    max_body_bytes: PositiveInteger = 4 << 20
    """bytes of a request; more gets 413"""
    max_turns: PositiveInteger = 100
    """turns of a conversation; more gets 400"""
    max_conversation_characters: PositiveInteger = 200_000
    """characters of a conversation, all turns together; more gets 400"""
    max_items: PositiveInteger = 100
    """items of a list (k); more gets 400"""
    timeout_seconds: PositiveNumber = 60.0
    """time for an answer; then it gets 504"""
    drain_seconds: NonNegativeNumber = 20.0
    """time for requests that run when the service is stopped; then they are cut"""
    fallback_after_seconds: PositiveNumber | None = None
    """time for a list, or a stream's first item; then the retrieval's, or popular items (else never)"""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Serve trained models: recommendations and chat completions over HTTP, and a chat page at /.

    MODEL is a run folder (its best checkpoint; RUN@last: the newest), RUN/global_step_N, a LoRA adapter, a Hugging Face
    folder or id; NAME=MODEL gives it a name. Several --model are several models behind one service, with one --catalog
    for all or one for each, in their order. --judge serves a model for chat completions alone. If others than this
    machine can reach it (--host), the variable SERVE_API_KEY must hold a key, which requests give as `Authorization:
    Bearer KEY`. Ctrl-C stops it. docs/how-to/serve.md

    convrec serve --model outputs/demo/rank_grpo \\
        --catalog outputs/demo/data/catalog.parquet
    convrec serve --judge checkpoints/judge
    """

    COMMAND: ClassVar[str] = "serve"

    model: NamedModels = ()
    """a model that recommends; may be given again"""
    catalog: Annotated[Sequence[str], Repeated, Parameter(metavar="FILE")] = ()
    """the model's items: .parquet of `convrec data`, or .pkl"""
    judge: NamedModels = ()
    """a judge, or any model for chat completions alone"""
    retrieval: Annotated[Sequence[Path], Repeated, Parameter(metavar="FOLDER")] = ()
    """folder of `convrec retrieval fit`: its lists are fused with the model's"""
    host: str = "127.0.0.1"
    """address to bind to"""
    port: Integer = 8000
    """port to bind to"""
    replicas: PositiveInteger = 1
    """engines of every model"""
    tensor_parallel: PositiveInteger = 1
    """GPUs of an engine"""
    state: Path = Path("outputs/serve")
    """folder that keeps changes of the catalogs, in a folder for each model"""
    keys: Annotated[Path | None, Parameter(metavar="FILE")] = None
    """YAML: keys, each with a name, a role (read, feedback, admin) and a limit"""
    filter: Annotated[Sequence[str], Repeated, Parameter(metavar="LABEL={...}")] = ()
    """a chip of the page and its `where`: 'Below 20={"price": {"max": 20}}'; may be given again"""
    strict: bool = False
    """refuse fields of chat completions that change nothing (tools: [], ...)"""
    feedback: bool = False
    """keep conversations, lists and POST /v1/feedback in --state"""
    mentions: MentionOptions = field(default_factory=MentionOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)
