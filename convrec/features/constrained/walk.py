"""One constrained list: which tokens may come next, and the state after each token.

A walk depends only on the catalog's trie, the excluded items, the number of items and the tokens so far. With the same
four inputs, sampler and trainer get the same allowed tokens.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from convrec.features.constrained.catalog_trie import END, CatalogTrie


class Walk:
    """A list of `num_items` different items, none of them excluded; fewer if fewer are left.

    Attributes:
        catalog: the trie.
        items: the items written so far, as their first rows; or only -1 - q for question q.
        node: the trie's node that the list has reached.
        num_items: the number of items of the whole list.
        closed: node -> its children below which no sequence is left. Of nodes that only one sequence has, only the
            first is closed.
    """

    def __init__(self, catalog: CatalogTrie, num_items: int, excluded: Iterable[int] = ()):
        """Begin a list.

        Args:
            catalog: the trie.
            num_items: the number of items.
            excluded: items, as their first rows; -1 - q opens the trie's question q, which may replace the list and so
                comes only at its beginning.
        """
        self.catalog = catalog
        self.items: list[int] = []
        self.closed: dict[int, list[int]] = {}
        self._taken: dict[int, int] = {}  # node -> how many sequences below it are excluded or written
        trie = catalog.trie
        self._token = trie.token_L.data
        self._first = trie.first_child.data
        self._leaves = trie.leaves_L.data
        self._sequence = trie.sequence_L.data
        self._item = catalog.item_W.data
        self._last_root = catalog.last_root
        self._excluded = set(excluded)
        self._open = [question for question in range(len(catalog.questions)) if -1 - question in self._excluded]
        self._close_questions(set(range(len(catalog.questions))) - set(self._open))
        left = catalog.num_items - sum(self._exclude(item) for item in self._excluded if item >= 0)
        self.num_items = min(num_items, left)
        self.node = self._find_root()

    def _find_root(self) -> int:
        return self.catalog.find_root(num_written=len(self.items), num_left=self.num_items - len(self.items))

    def _exclude(self, item: int) -> bool:
        """Close an item's lines, which takes a few microseconds; return whether it was in the trie."""
        paths = self.catalog.closing_paths(item)
        for path in paths:
            self._close(path)
        return bool(paths)

    def _close(self, path: Sequence[int]) -> None:
        """Close the sequence of this path (`CatalogTrie.find_closing_path`)."""
        node = path[0]
        for parent in path[1:]:
            taken = self._taken.get(node, 0) + 1
            self._taken[node] = taken
            if taken == self._leaves[node]:
                self.closed.setdefault(parent, []).append(node)
            node = parent

    def _close_questions(self, questions: Iterable[int]) -> None:
        first = self.catalog.first_question
        count = len(self.catalog.questions)
        for question in questions:
            self._close(self.catalog.find_closing_path(first + question))
            self._close(self.catalog.find_closing_path(first + count + question))

    def count_choices(self) -> int:
        """Count the tokens that may come next; a single one is forced."""
        return int(self._first[self.node + 1] - self._first[self.node] - len(self.closed.get(self.node, ())))

    def allowed(self) -> list[int]:
        """Return the tokens that may come next, ascending; at least one."""
        closed = self.closed.get(self.node, ())
        nodes = range(self._first[self.node], self._first[self.node + 1])
        return [self._token[node] for node in nodes if node not in closed]

    def advance(self, token: int) -> int:
        """Take a token and return its node.

        Returns:
            The node; END for tokens after the end of the list, which are ignored.

        Raises:
            ValueError: the token is not allowed.
        """
        if self.node == END:
            return END
        stop = self._first[self.node + 1]
        child: int = bisect_left(self._token, token, self._first[self.node], stop)
        if child == stop or self._token[child] != token or child in self.closed.get(self.node, ()):
            raise ValueError(f"token {token} is not allowed after {len(self.items)} items (node {self.node})")
        if self._sequence[child] < 0:
            self.node = child
        else:
            self.end_line(child)
        return child

    def end_line(self, leaf: int) -> None:
        """Add the item or question that ends at a leaf, and start the next line.

        Raises:
            ValueError: the list must not contain it.
        """
        line = self._sequence[leaf]
        question = line - self.catalog.first_question
        if question >= 0:
            number = question % len(self.catalog.questions)
            if self.items or number not in self._open:
                raise ValueError(f"question {number} is not open after {len(self.items)} items")
            self.items.append(-1 - number)
            self.node = END
            return
        item = self._item[line % len(self._item)]
        if item in self._excluded or item in self.items:
            raise ValueError(f"item {item} is excluded or already in the list")
        if not self.items:
            self._close_questions(self._open)
        self.items.append(item)
        self._exclude(item)
        self.node = self._find_root()
