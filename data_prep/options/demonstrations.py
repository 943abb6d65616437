"""Options of `convrec demonstrations`."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from convrec.base.options import (
    BelowOne,
    Fraction,
    Integer,
    ItemCount,
    NonNegativeInteger,
    NonNegativeNumber,
    PositiveInteger,
    PositiveNumber,
    Sampling,
)

StageName = Literal["rows", "teacher", "metadata", "remap", "reflect", "adjust", "demonstrations", "all"]


@dataclass(frozen=True, kw_only=True)
class DemonstrationsOptions:
    """Remap-Reflect-Adjust: SFT demonstrations for a catalog, stage by stage. docs/how-to/demonstrations.md

    Stages, each with its parquet in --out and a record STAGE.json of settings and summary: rows (the conversations),
    teacher (a list for each), metadata (words for each item), remap (the best candidates), reflect (their ratings),
    adjust (weights and biases of items), demonstrations (what `convrec train sft` reads); all: every stage in this
    order.

    A stage whose settings and inputs are those of its record is left alone. Changed ones, and files that no stage
    wrote, are refused, or made again with --redo, which also asks questions again that got no answer (failed.jsonl).

    Models are asked at OpenAI-compatible addresses: TEACHER_BASE_URL, TEACHER_MODEL, TEACHER_API_KEY and JUDGE_... or,
    for both, LLM_...; answers are kept in --cache, so that nothing is paid for twice.

    convrec demonstrations all --train data/sample/train.parquet --out data/demonstrations \\
        --validation data/sample/validation.parquet --catalog data/sample/catalog.parquet
    """

    COMMAND: ClassVar[str] = "demonstrations"

    stage: StageName = field(kw_only=False)
    """what to run; all: every stage in this order"""
    out: str
    """folder of the stages"""
    redo: bool = False
    """run a stage again whose settings or inputs changed"""
    seed: Integer = 3407
    """random seed of the drawn rows and of the fits"""
    train: str | None = None
    """rows: training split (parquet, columns of docs/reference/files.md)"""
    validation: str | None = None
    """rows: validation split"""
    catalog: str | None = None
    """rows: catalog.parquet; its further columns describe the items"""
    share: Fraction = 0.25
    """rows: share of the training split"""
    num_items: ItemCount = 20
    """rows: items of a list, as the prompts ask"""
    teacher: Literal["llm", "retrieval"] = "llm"
    """teacher: who writes the first lists"""
    metadata: Literal["llm", "columns"] = "columns"
    """metadata: the catalog's columns, or a model too"""
    remap: Literal["full", "none"] | None = None
    """remap; none: the teacher's items alone (full; none where the catalog has nothing but titles)"""
    embedding: str = "tfidf-svd"
    """remap: tfidf-svd, or sentence-transformers:MODEL"""
    trust_remote_code: bool = False
    """remap: run the code that comes with MODEL"""
    dimensions: PositiveInteger = 256
    """remap: dimensions of tfidf-svd"""
    candidates: PositiveInteger = 100
    """remap: candidates of a conversation, N_r"""
    conversation_weight: NonNegativeNumber = 1.0
    """remap: lambda"""
    judge: Literal["list", "pointwise", "cooccurrence", "none"] = "list"
    """reflect: who rates candidates (data_prep/stages/reflect.py)"""
    gamma: NonNegativeNumber = 0.5
    """reflect: weight of a rating"""
    judged: PositiveInteger | None = None
    """reflect: candidates that a pointwise judge rates (all)"""
    criteria: str | None = None
    """reflect: criteria of a pointwise judge, criteria.yaml beside it (the defaults)"""
    penalty: NonNegativeNumber | None = None
    """adjust: penalty on |w - 1|^2 and |b|^2 (10; 1 with --remap none)"""
    max_epochs: NonNegativeInteger = 500
    """adjust: most passes of the fit; 0: w = 1, b = 0"""
    workers: PositiveInteger | None = None
    """remap, adjust: processes (one for every core)"""
    concurrency: PositiveInteger = 16
    """models: requests in flight"""
    retries: NonNegativeInteger = 14
    """models: retries of one request"""
    timeout: PositiveNumber = 600.0
    """models: seconds for one answer"""
    skip_failed: BelowOne = 0.05
    """models: share of a stage's questions that may stay without an answer; OUT/failed.jsonl names them"""
    cache: str | None = None
    """models: folder of the answers (OUT/answers)"""
    sampling: Sampling = field(default_factory=dict)
    """models: parameters as JSON, '{"top_p": 0.9}'; null: not sent"""
