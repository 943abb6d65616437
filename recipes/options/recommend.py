"""Options of `convrec recommend`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from cyclopts import Parameter

from convrec.base.options import PositiveInteger
from convrec.inference.engines.options import PlacementOptions
from convrec.inference.options import MentionOptions


@dataclass(frozen=True, kw_only=True)
class RecommendOptions:
    """Write lists for the conversations in a file, without ground truth, with a trained model and its catalog.

    After an interruption, the same command resumes. The columns of CHATS and --out: docs/how-to/recommend-file.md

    convrec recommend --model outputs/demo/rank_grpo \\
        --catalog outputs/demo/data/catalog.parquet --in chats.jsonl --out lists.parquet
    """

    COMMAND: ClassVar[str] = "recommend"

    model: str
    """run folder (its best checkpoint; RUN@last: the newest), RUN/global_step_N, or Hugging Face folder or id"""
    catalog: str
    """catalog, .parquet or .pkl"""
    chats: Annotated[str, Parameter(name="--in", metavar="CHATS")]
    """conversations, .jsonl, .csv or .parquet"""
    out: str
    """.parquet file to write"""
    k: PositiveInteger = 20
    """number of items in a list"""
    item: str | None = None
    """word for an item in the prompt (default: as in training, else movie)"""
    num_items: PositiveInteger | None = None
    """number of items in the prompt's instruction (default: as in training, else 20)"""
    max_prompt_length: PositiveInteger = 2048
    """largest number of tokens in a prompt; longer prompts lose their beginning"""
    retrieval: Annotated[Path | None, Parameter(metavar="FOLDER")] = None
    """folder of `convrec retrieval fit`, whose lists are fused with the model's"""
    why: bool = False
    """add a sentence of explanation to items, if there is one"""
    overwrite: bool = False
    """replace an existing --out"""
    mentions: MentionOptions = field(default_factory=MentionOptions)
    placement: PlacementOptions = field(default_factory=PlacementOptions)
