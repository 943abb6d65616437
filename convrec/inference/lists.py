"""What a request may ask for of its list, and what a list is."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypedDict

ItemNames: TypeAlias = Collection[str | int]  # item ids, `Title (Year)`, or titles alone, of any year


class Filters(TypedDict, total=False):
    """As `Recommender.recommend` has them."""

    seen: ItemNames
    allow: ItemNames | None
    exclude: ItemNames
    where: Mapping[str, Any] | None
    why: bool
    liked: ItemNames
    may_ask: bool
    ignore_case: bool


@dataclass(frozen=True)
class Question:
    """In place of a list. answers: labels of the catalog that a user may choose, those of most items first."""

    text: str
    attribute: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class RecommendedItem:
    """title: as the list has it. clean_title: without what tells it from others of that title. rank counts from 1.
    score: the mean log-prob of the item's tokens under the constrained model, over those at which it had a choice; 0
    where it had none, None where no model wrote the list. Scores of one list compare; they need not fall with the rank.
    columns: the catalog's that `show` names. why: a sentence, where it was asked for and one is so."""

    item_id: str
    title: str
    clean_title: str
    year: int | None
    columns: Mapping[str, Any]
    rank: int
    score: float | None
    why: str | None


@dataclass(frozen=True)
class Recommendations(Sequence[RecommendedItem]):
    """A list, best first. reason: why it has fewer than k items, None where it has k. prompt_truncated: whether the
    beginning of the conversation was left out, which was too long for the model. fallback: whether these are
    popular items or a retrieval's, which no model chose. question: what is asked in place of items (`may_ask`).
    list_id: another for every list, also for the same one again; what became of its items is told of it."""

    items: tuple[RecommendedItem, ...]
    reason: str | None
    model_version: str
    prompt_truncated: bool
    fallback: bool = False
    question: Question | None = None
    list_id: str = field(default_factory=lambda: f"list-{uuid.uuid4().hex}", compare=False)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]
