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
    """Convert users' ratings to conversations, as `convrec data own` writes them. docs/how-to/convert-ratings.md

    The items that a user liked become a question ("I liked A, B and C. What next?"), the next items its ground truth.

    convrec data ratings --ratings ratings.csv --items movies.csv --min-rating 4 --out data/ratings
    """

    COMMAND: ClassVar[str] = "data ratings"

    ratings: Annotated[str, Parameter(metavar="FILE")]
    """ratings as CSV, JSONL, parquet or in MovieLens' formats; also .gz"""
    out: str
    """folder to write"""
    items: Annotated[str | None, Parameter(metavar="FILE")] = None
    """items; without it, the ratings name items by title"""
    columns: Annotated[Sequence[str], Parameter(metavar="ROLE=NAME...")] = ()
    """columns of the ratings; without a header, all columns in order: user item rating time, - to ignore one"""
    item_columns: Annotated[Sequence[str], Parameter(metavar="OURS=THEIRS...")] = ()
    """columns of the items: item_id=sku title=name year=made"""
    min_rating: Annotated[FiniteNumber | None, Parameter(metavar="RATING")] = None
    """lowest rating that counts as liked (all count)"""
    max_history: Count = 10
    """items that a question names, at most"""
    wanted: Count = 3
    """next items that are the ground truth"""
    rows_per_user: Count = 1
    """rows of train per user, at most"""
    split_by: Literal["time", "user"] | None = None
    """how splits are made (time if the ratings have times, otherwise user)"""
    seed: Integer = 3407
    """random seed for the wordings"""
    output: OutputOptions = field(default_factory=OutputOptions)
