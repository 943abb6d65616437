"""The filters of a request, and the list that answers it."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypedDict

ItemNames: TypeAlias = Collection[str | int]  # item ids, `Title (Year)`, or titles alone, of any year


class Filters(TypedDict, total=False):
    """Keyword arguments of `Recommender.recommend`."""

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
    """A question that the model asks instead of giving a list.

    Attributes:
        text: the question.
        attribute: the column of the catalog that it is about.
        answers: the catalog's most common labels, most common first.
    """

    text: str
    attribute: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class RecommendedItem:
    """An item of a list.

    Attributes:
        item_id: the catalog's id, or the row number.
        title: the title as the list writes it.
        clean_title: the title without the addition that tells it from equal titles.
        year: None if items have no years.
        columns: the catalog's columns that `show` names.
        rank: from 1.
        score: mean log-prob of the item's tokens under the constrained model, over the tokens where it had a choice; 0
            if it had none, None if no model wrote the list. Scores are comparable within a list, but need not fall with
            the rank.
        why: an explanation, if requested and one is true; else None.
    """

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
    """A list of items, best first.

    Attributes:
        items: the items.
        reason: why the list has fewer than k items; None if it has k.
        model_version: the checkpoint.
        prompt_truncated: whether the beginning of the conversation was cut to fit the model.
        fallback: whether the items are popular or retrieved ones that no model chose.
        question: the question that the model asks instead of a list (`may_ask`).
        list_id: unique for every list, even if the same request is repeated; feedback refers to it.
    """

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
