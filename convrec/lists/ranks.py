"""The rank grammar's text half: a response -> its lines -> items. Nothing else in the program splits lines.

Rank k is the k-th non-blank line, whether or not it parses: a line that does not parse keeps its rank and earns
nothing. Blank lines take no rank. `token_ranks` applies the same rule to tokens, so rewards and tokens cannot drift
apart.
"""

from convrec.titles.item import Item, parse_item

# ASCII only, so that the byte-level half (token_ranks) and this half agree on what a blank line is.
WHITESPACE = " \t\n\r\v\f"
DEFAULT_DELIMITER = "\n"


def split_lines(text: str, delimiter: str = DEFAULT_DELIMITER) -> list[str]:
    """Non-blank lines of a response, stripped of WHITESPACE; the index is the 0-based rank."""
    lines = [raw.strip(WHITESPACE) for raw in text.split(delimiter)]
    return [line for line in lines if line]


def replace_line(text: str, rank: int, line: str, delimiter: str = DEFAULT_DELIMITER) -> str:
    """Put another line at a rank of a response; blanks around it, and all else, stay as they are."""
    raw_lines = text.split(delimiter)
    places = [place for place, raw in enumerate(raw_lines) if raw.strip(WHITESPACE)]
    raw = raw_lines[places[rank]]
    before, _, after = raw.partition(raw.strip(WHITESPACE))
    raw_lines[places[rank]] = before + line + after
    return delimiter.join(raw_lines)


def parse_items(text: str, delimiter: str = DEFAULT_DELIMITER, dated: bool = True) -> list[Item | None]:
    """One entry a rank; None where the line is not an item. `dated` as in `parse_item`."""
    return [parse_item(line, dated) for line in split_lines(text, delimiter)]
