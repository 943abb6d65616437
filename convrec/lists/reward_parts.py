"""The names of the parts of a composed rank reward; convrec.features.rewards.parts computes them."""

RELEVANCE = "relevance"
DIVERSITY = "diversity"
MENTION_PARTS = ("novelty", "popularity")

REWARD_PARTS: dict[str, str] = {  # name -> its return r_k
    RELEVANCE: "the return of `convrec.reward`",
    DIVERSITY: "mean over the catalog items of earlier ranks of 1 - genres in common / genres of either; 0 without any",
    "novelty": "log(S / m) / log(S): m mentions of the item (at least 1), S of all; 0 to 1",
    "popularity": "m / the most mentions of an item",
    "repeats": "1 if the line repeats an earlier rank, in the catalog or not, else 0",
    "out_of_catalog": "1 for a line that is not a catalog item, else 0",
}
COLUMN_PARTS: dict[str, str] = {  # prefix of a column's name -> its return r_k
    "diversity.": "like diversity, for the texts of that column; for title, its trigrams",
    "catalog.": "the item's number in that column",
}
PART_NAMES = (*REWARD_PARTS, *(f"{prefix}COLUMN" for prefix in COLUMN_PARTS))


def is_part(name: object) -> bool:
    """Return whether a name is that of a part; the catalog may still lack its column."""
    return isinstance(name, str) and (
        name in REWARD_PARTS or any(name.startswith(prefix) and name != prefix for prefix in COLUMN_PARTS)
    )
