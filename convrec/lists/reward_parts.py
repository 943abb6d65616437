"""The names of the parts of a composed rank reward; convrec.features.rewards.parts computes them."""

RELEVANCE = "relevance"
DIVERSITY = "diversity"
OF_MENTIONS = ("novelty", "popularity")

REWARD_PARTS: dict[str, str] = {  # name -> its return r_k
    RELEVANCE: "what `convrec.reward` gives",
    DIVERSITY: "mean over the catalog items of earlier ranks of 1 - genres in common / genres of either; 0 without any",
    "novelty": "log(S / m) / log(S): m mentions of the item (at least 1), S of all; 0 to 1",
    "popularity": "m / the most mentions of an item",
    "repeats": "1 where the line names what an earlier rank names, in the catalog or not, else 0",
    "out_of_catalog": "1 for a line that is no item of the catalog, else 0",
}
OF_COLUMNS: dict[str, str] = {  # the name goes on with a column's name
    "diversity.": "as diversity, of the texts of that column; of title, its trigrams",
    "catalog.": "the item's number in that column",
}
PART_NAMES = (*REWARD_PARTS, *(f"{prefix}COLUMN" for prefix in OF_COLUMNS))


def is_part(name: object) -> bool:
    """Whether it is a part's name; whether the catalog has the column is another question."""
    return isinstance(name, str) and (
        name in REWARD_PARTS or any(name.startswith(prefix) and name != prefix for prefix in OF_COLUMNS)
    )
