"""Retrieval over a served catalog, whose items get other numbers when they are replaced; known by their lines."""

from collections.abc import Set
from pathlib import Path

import numpy as np

from convrec.inference.served_catalog.snapshot import LINE, Snapshot
from convrec.lists.settings import ListSettings, make_matcher
from convrec.retrieval.conversations import Conversation
from convrec.retrieval.folder import load
from convrec.titles.catalog import load_catalog, tell_problems
from convrec.titles.forms import normalise


class ServedRetrieval:
    """Safe to use from several threads. fusion: with the model's lists."""

    def __init__(self, folder: Path, catalog: Path, lists: ListSettings, fuses: bool) -> None:
        """Raises UserError as convrec.retrieval.folder.load does."""
        matcher = make_matcher(load_catalog(catalog), lists)
        self._retriever, warnings = load(folder, catalog, matcher, fuses)
        tell_problems(catalog, warnings)
        self.fusion = self._retriever.fusion
        self._lines = [LINE + normalise(line) for line in matcher.catalog.lines]
        self._known: tuple[Snapshot, np.ndarray] | None = None

    def rank(self, text: str, named: Set[int], left: Set[int], snapshot: Snapshot) -> list[int]:
        """All items that are left, by their numbers, best first; those that nothing is known of come last, of them
        popular ones first."""
        numbers_M = self._numbers(snapshot)
        rows = np.flatnonzero(np.isin(numbers_M, [*named]))
        found = self._retriever.rank(Conversation(text, rows.tolist()), np.isin(numbers_M, [*left]))
        numbers = [*dict.fromkeys(numbers_M[found].tolist())]
        unknown = left - {*numbers}
        return numbers + [number for number in snapshot.popular if number in unknown]

    def warm(self, snapshot: Snapshot) -> None:
        """Make what is made once for all requests of a snapshot."""
        self._numbers(snapshot)

    def _numbers(self, snapshot: Snapshot) -> np.ndarray:
        """(M,) of each row of the catalog's file the item's number now; -1: it has none."""
        known = self._known
        if known is None or known[0] is not snapshot:
            self._known = known = snapshot, np.array([snapshot.named.get(line, (-1,))[0] for line in self._lines])
        return known[1]
