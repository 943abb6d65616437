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
    """Lists for the conversations of a file, without ground truth, from a trained model and its catalog.

    Stopped, the same command goes on where it was. The columns of CHATS and of --out: docs/how-to/recommend-file.md

    convrec recommend --model outputs/demo/rank_grpo \\
        --catalog outputs/demo/data/catalog.parquet --in chats.jsonl --out lists.parquet
    """

    COMMAND: ClassVar[str] = "recommend"

    model: str
    """run folder (its best checkpoint; RUN@last: the newest), RUN/global_step_N, Hugging Face folder or id"""
    catalog: str
    """.parquet or .pkl"""
    chats: Annotated[str, Parameter(name="--in", metavar="CHATS")]
    """.jsonl, .csv or .parquet"""
    out: str
    """.parquet to write"""
    k: PositiveInteger = 20
    """items of a list"""
    item: str | None = None
    """what the prompt calls an item (as in training, else movie)"""
    num_items: PositiveInteger | None = None
    """items that the prompt asks for (as in training, else 20)"""
    max_prompt_length: PositiveInteger = 2048
    """tokens; longer prompts lose their beginning"""
    retrieval: Annotated[Path | None, Parameter(metavar="FOLDER")] = None
    """folder of `convrec retrieval fit`: its lists are fused with the model's"""
    why: bool = False
    """give items a reason in one sentence, if there is one"""
    overwrite: bool = False
    """replace an --out that is there"""
    mentions: MentionOptions = field(default_factory=MentionOptions)
    placement: PlacementOptions = field(default_factory=PlacementOptions)
