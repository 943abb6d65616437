"""Options of `convrec data ratings`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from convrec.base.options import FiniteNumber, Integer, PositiveInteger
from data_prep.options.output import OutputOptions

Count = Annotated[PositiveInteger, Parameter(metavar="N")]


@dataclass(frozen=True, kw_only=True)
class RatingsOptions:
    """Ratings of users as conversations, in the folder that `convrec data own` writes. docs/how-to/data.md

    What a user liked becomes a question ("I liked A, B and C. What next?"), and the next items are the relevant ones.

    convrec data ratings --ratings ratings.csv --items movies.csv --min-rating 4 --out data/ratings
    """

    COMMAND: ClassVar[str] = "data ratings"

    ratings: Annotated[str, Parameter(metavar="FILE")]
    """CSV, JSONL, parquet, MovieLens' own; also .gz"""
    out: str
    """folder to write"""
    items: Annotated[str | None, Parameter(metavar="FILE")] = None
    """the items; without it the ratings name items by their titles"""
    columns: Annotated[Sequence[str], Parameter(metavar="ROLE=NAME...")] = ()
    """columns of the ratings; for a file without a header user item rating time, or - for one that is not read"""
    item_columns: Annotated[Sequence[str], Parameter(metavar="OURS=THEIRS...")] = ()
    """columns of the items: item_id=sku title=name year=made"""
    min_rating: Annotated[FiniteNumber | None, Parameter(metavar="RATING")] = None
    """leave lower ratings out"""
    max_history: Count = 10
    """items a question names"""
    wanted: Count = 3
    """next items that are wanted"""
    rows_per_user: Count = 1
    """rows of train for a user, at most"""
    split_by: Literal["time", "user"] | None = None
    """how splits are made (time, where the ratings have one)"""
    seed: Integer = 3407
    """random seed of the wordings"""
    output: OutputOptions = field(default_factory=OutputOptions)
