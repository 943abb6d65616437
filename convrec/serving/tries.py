"""Files of tries for the engine's process, each as long as something here needs it."""

import itertools
import weakref
from functools import lru_cache
from pathlib import Path

from convrec.constrained.catalog_trie import CatalogTrie, save_catalog_trie


class TrieFile:
    """A trie and its file in a folder. The file goes with the last request or catalog that refers to this object."""

    _numbers = itertools.count()

    def __init__(self, trie: CatalogTrie, folder: Path):
        self.trie = trie
        self.path = folder / f"trie-{next(self._numbers)}.npz"
        self.longest_list = lru_cache(trie.longest_list)  # milliseconds, for each request
        save_catalog_trie(self.path, trie)
        weakref.finalize(self, self.path.unlink, missing_ok=True)
