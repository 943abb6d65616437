"""The text half of the rank grammar: a response -> its lines -> items. Nothing else in the program splits lines.

Rank k is the k-th non-blank line, even if it does not parse: such a line keeps its rank and earns nothing. Blank lines
have no rank. `token_ranks` applies the same rule to tokens, so that rewards and tokens always agree.
"""

from convrec.titles.item import Item, parse_item

# Only ASCII is blank, so that this half and the byte-level half (token_ranks) agree on which lines are blank.
WHITESPACE = " \t\n\r\v\f"
DEFAULT_DELIMITER = "\n"


def split_lines(text: str, delimiter: str = DEFAULT_DELIMITER) -> list[str]:
    """Split a response into its non-blank lines, which are its ranks.

    Args:
        text: the response.
        delimiter: the character that ends a line.

    Returns:
        The lines, stripped of WHITESPACE; the index is the 0-based rank.
    """
    lines = [raw.strip(WHITESPACE) for raw in text.split(delimiter)]
    return [line for line in lines if line]


def replace_line(text: str, rank: int, line: str, delimiter: str = DEFAULT_DELIMITER) -> str:
    """Replace the line at a rank of a response; the blanks around it and everything else stay unchanged.

    Args:
        text: the response.
        rank: the 0-based rank.
        line: the new line, without a delimiter.
        delimiter: the character that ends a line.

    Returns:
        The new response.

    Raises:
        IndexError: the response has no such rank.
    """
    raw_lines = text.split(delimiter)
    places = [place for place, raw in enumerate(raw_lines) if raw.strip(WHITESPACE)]
    raw = raw_lines[places[rank]]
    before, _, after = raw.partition(raw.strip(WHITESPACE))
    raw_lines[places[rank]] = before + line + after
    return delimiter.join(raw_lines)


def parse_items(text: str, delimiter: str = DEFAULT_DELIMITER, dated: bool = True) -> list[Item | None]:
    """Parse the lines of a response.

    Args:
        text: the response.
        delimiter: the character that ends a line.
        dated: whether items have years, see `parse_item`.

    Returns:
        The item of each rank; None for a line that is not an item.
    """
    return [parse_item(line, dated) for line in split_lines(text, delimiter)]
