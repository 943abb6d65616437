"""One list under the constraint: which tokens may come next, and what each token does.

A walk is a function of the catalog's trie, the excluded items, the number of items and the tokens so far, and of
nothing else: whoever has these four, the sampler or a trainer, has the same allowed tokens.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from convrec.features.constrained.catalog_trie import END, CatalogTrie


class Walk:
    """A list of `num_items` different items, none of them excluded; fewer where fewer are left.

    excluded: items, by their first rows; -1 - q opens the trie's question q, which may stand in place of a list, so at
    its beginning alone. node: where the list is in the trie. taken: of each node, how many sequences below it are
    excluded or written. closed: of each node, its children below which none is left (but for nodes that
    only one sequence has, where its first node is enough). items: what was written, as first rows, or -1 - q alone.
    """

    def __init__(self, catalog: CatalogTrie, num_items: int, excluded: Iterable[int] = ()):
        self.catalog = catalog
        self.items: list[int] = []
        self.closed: dict[int, list[int]] = {}
        self._taken: dict[int, int] = {}
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
        self.node = self._root()

    def _root(self) -> int:
        return self.catalog.root(num_written=len(self.items), num_left=self.num_items - len(self.items))

    def _exclude(self, item: int) -> bool:
        """Take an item's lines out of the list's way, some microseconds; whether it was in the trie."""
        paths = self.catalog.closing_paths(item)
        for path in paths:
            self._close(path)
        return bool(paths)

    def _close(self, path: Sequence[int]) -> None:
        """Take the sequence out of the list's way that this path leads to (`CatalogTrie.closing_path`)."""
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
            self._close(self.catalog.closing_path(first + question))
            self._close(self.catalog.closing_path(first + count + question))

    def num_choices(self) -> int:
        """How many tokens may come next; one is forced."""
        return int(self._first[self.node + 1] - self._first[self.node] - len(self.closed.get(self.node, ())))

    def allowed(self) -> list[int]:
        """The tokens that may come next, ascending; one at least."""
        closed = self.closed.get(self.node, ())
        nodes = range(self._first[self.node], self._first[self.node + 1])
        return [self._token[node] for node in nodes if node not in closed]

    def advance(self, token: int) -> int:
        """Take a token and return its node. Raises ValueError for one that is not allowed. Behind the end everything
        is ignored: END."""
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
        """Note the item or question that ends in a node without children, and go on to the next line.

        Raises:
            ValueError: the list must not have it.
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
            raise ValueError(f"item {item} is excluded, or is in the list already")
        if not self.items:
            self._close_questions(self._open)
        self.items.append(item)
        self._exclude(item)
        self.node = self._root()
