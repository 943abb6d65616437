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
    """Build SFT demonstrations for a catalog with Remap-Reflect-Adjust. docs/how-to/demonstrations.md

    Each stage writes parquet and a record STAGE.json of settings and summary to --out: rows (the conversations),
    teacher (a list for each), metadata (text for each item), remap (the best candidates), reflect (their ratings),
    adjust (weights and biases of items), demonstrations (the input of `convrec train sft`); all: every stage in this
    order.

    A stage is skipped if its settings and inputs are unchanged. If they changed, or another program wrote its files, it
    is refused, or run again with --redo, which also repeats questions that got no answer (failed.jsonl).

    Models are OpenAI-compatible endpoints: TEACHER_BASE_URL, TEACHER_MODEL, TEACHER_API_KEY and JUDGE_... or, for both,
    LLM_...; answers are cached in --cache, so that nothing is paid for twice.

    convrec demonstrations all --train data/sample/train.parquet --out data/demonstrations \\
        --validation data/sample/validation.parquet --catalog data/sample/catalog.parquet
    """

    COMMAND: ClassVar[str] = "demonstrations"

    stage: StageName = field(kw_only=False)
    """stage to run; all: every stage in this order"""
    out: str
    """folder of the stages"""
    redo: bool = False
    """run a stage again if its settings or inputs changed"""
    seed: Integer = 3407
    """random seed for the choice of rows and for the fits"""
    train: str | None = None
    """rows: training split (parquet, columns of docs/reference/files.md)"""
    validation: str | None = None
    """rows: validation split"""
    catalog: str | None = None
    """rows: catalog.parquet; its extra columns describe the items"""
    share: Fraction = 0.25
    """rows: share of the training split"""
    num_items: ItemCount = 20
    """rows: items of a list, as in the prompts"""
    teacher: Literal["llm", "retrieval"] = "llm"
    """teacher: source of the first lists"""
    metadata: Literal["llm", "columns"] = "columns"
    """metadata: the catalog's columns, or a model in addition"""
    remap: Literal["full", "none"] | None = None
    """remap; none: only the teacher's items (full; none if the catalog has only titles)"""
    embedding: str = "tfidf-svd"
    """remap: tfidf-svd or sentence-transformers:MODEL"""
    trust_remote_code: bool = False
    """remap: allow the code that comes with MODEL to run"""
    dimensions: PositiveInteger = 256
    """remap: dimensions of tfidf-svd"""
    candidates: PositiveInteger = 100
    """remap: candidates per conversation, N_r"""
    conversation_weight: NonNegativeNumber = 1.0
    """remap: lambda, the weight of the conversation"""
    judge: Literal["list", "pointwise", "cooccurrence", "none"] = "list"
    """reflect: judge that rates candidates (data_prep/stages/reflect.py)"""
    gamma: NonNegativeNumber = 0.5
    """reflect: weight of a rating"""
    judged: PositiveInteger | None = None
    """reflect: candidates rated by a pointwise judge (all)"""
    criteria: str | None = None
    """reflect: criteria of a pointwise judge, the criteria.yaml next to it (the defaults)"""
    penalty: NonNegativeNumber | None = None
    """adjust: penalty on |w - 1|^2 and |b|^2 (10; 1 with --remap none)"""
    max_epochs: NonNegativeInteger = 500
    """adjust: maximum passes of the fit; 0: w = 1, b = 0"""
    workers: PositiveInteger | None = None
    """remap, adjust: processes (one per core)"""
    concurrency: PositiveInteger = 16
    """models: requests in flight"""
    retries: NonNegativeInteger = 14
    """models: retries per request"""
    timeout: PositiveNumber = 600.0
    """models: seconds per answer"""
    skip_failed: BelowOne = 0.05
    """models: share of a stage's questions that may stay unanswered; OUT/failed.jsonl lists them"""
    cache: str | None = None
    """models: folder of cached answers (OUT/answers)"""
    sampling: Sampling = field(default_factory=dict)
    """models: sampling parameters as JSON, e.g. '{"top_p": 0.9}'; null: not sent"""
