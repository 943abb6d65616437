"""One list under the constraint: which tokens may come next, and what each token does.

A walk is a function of the catalog's trie, the excluded items, the number of items and the tokens so far, and of
nothing else: whoever has these four, the sampler or a trainer, has the same allowed tokens.
"""

from bisect import bisect_left
from collections.abc import Iterable

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
        self._token, self._parent = trie.token_L.data, trie.parent_L.data
        self._first, self._leaves = trie.first_child.data, trie.leaves_L.data
        self._own = trie.own_S.data
        self._last_root = catalog.last_root
        given = set(excluded)
        self._open = [question for question in range(len(catalog.questions)) if -1 - question in given]
        self._close_questions(set(range(len(catalog.questions))) - set(self._open))
        left = catalog.num_items - sum(self._exclude(item) for item in given if item >= 0)
        self.num_items = min(num_items, left)
        self.node = self._root()

    def _root(self) -> int:
        return self.catalog.root(num_written=len(self.items), num_left=self.num_items - len(self.items))

    def _exclude(self, item: int) -> bool:
        """Take an item's lines out of the list's way, some microseconds; whether it was in the trie."""
        lines = self.catalog.lines_of(item)
        num_lines = len(self.catalog.row_W)
        for line in lines:
            for form in range(self.catalog.num_forms):
                self._close(form * num_lines + line)
        return bool(lines)

    def _close(self, sequence: int) -> None:
        node = self._own[sequence]
        while node > self._last_root:
            self._taken[node] = taken = self._taken.get(node, 0) + 1
            parent = self._parent[node]
            if taken == self._leaves[node]:
                self.closed.setdefault(parent, []).append(node)
            node = parent

    def _close_questions(self, questions: Iterable[int]) -> None:
        first = self.catalog.first_question
        count = len(self.catalog.questions)
        for question in questions:
            self._close(first + question)
            self._close(first + count + question)

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
        line = int(self.catalog.trie.sequence_L[child])
        if line < 0:
            self.node = child
            return child
        question = line - self.catalog.first_question
        if question >= 0:
            self.items.append(-1 - question % len(self.catalog.questions))
            self.node = END
            return child
        if not self.items:
            self._close_questions(self._open)
        item = int(self.catalog.item_W[line % len(self.catalog.row_W)])
        self.items.append(item)
        self._exclude(item)
        self.node = self._root()
        return child
