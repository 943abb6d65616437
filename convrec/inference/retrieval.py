"""Retrieval over a served catalog. Items are identified by their lines, since a replaced item gets a new number."""

from collections.abc import Set
from pathlib import Path

import numpy as np

from convrec.inference.list_request import AllowedItems
from convrec.inference.served_catalog.snapshot import LINE, Snapshot
from convrec.lists.settings import ListSettings, make_matcher
from convrec.retrieval.conversations import Conversation
from convrec.retrieval.folder import load
from convrec.titles.catalog import load_catalog, print_problems, reject_changes
from convrec.titles.forms import normalise


class ServedRetrieval:
    """A fitted retrieval for a served catalog. Thread-safe.

    Attributes:
        fusion: fuses its lists with the model's; None if they are not fused.
    """

    def __init__(self, folder: Path, catalog: Path, lists: ListSettings, fuses: bool) -> None:
        """Load the retrieval.

        Args:
            folder: from `convrec retrieval fit`.
            catalog: the catalog's file.
            lists: the grammar of lists.
            fuses: whether its lists will be fused with a model's.

        Raises:
            UserError: see convrec.retrieval.folder.load and `reject_changes`.
        """
        with reject_changes(catalog):
            matcher = make_matcher(load_catalog(catalog), lists)
            self._retriever, warnings = load(folder, catalog, matcher, fuses)
        print_problems(catalog, warnings)
        self.fusion = self._retriever.fusion
        self._lines = [LINE + normalise(line) for line in matcher.catalog.lines]
        self._cached_numbers: tuple[Snapshot, np.ndarray] | None = None

    def rank(self, text: str, named: Set[int], allowed: AllowedItems, count: int) -> list[int]:
        """Rank the items that may be listed, best first.

        Args:
            text: the conversation.
            named: numbers of the items that count as named in it.
            allowed: the items that may be listed.
            count: number of items.

        Returns:
            The numbers of the items. Those that the retrieval does not know come last, popular ones first.
        """
        numbers_M = self._find_numbers(allowed.snapshot)
        rows = np.flatnonzero(np.isin(numbers_M, [*named]))
        is_allowed_M = np.isin(numbers_M, allowed.remaining)
        ranked_rows = self._retriever.rank(Conversation(text, rows.tolist()), is_allowed_M, count)
        numbers = [*dict.fromkeys(numbers_M[ranked_rows].tolist())]
        missing = count - len(numbers)
        return numbers + (allowed.find_popular(missing, numbers) if missing else [])

    def warm(self, snapshot: Snapshot) -> None:
        """Compute the data that all requests of a snapshot share."""
        self._find_numbers(snapshot)

    def _find_numbers(self, snapshot: Snapshot) -> np.ndarray:
        """Return the item's current number for each row of the catalog's file, (M,); -1 for none."""
        cached = self._cached_numbers
        if cached is None or cached[0] is not snapshot:
            numbers_M = np.array([snapshot.named.get(line, (-1,))[0] for line in self._lines])
            cached = (snapshot, numbers_M)
            self._cached_numbers = cached
        return cached[1]
