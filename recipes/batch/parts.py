"""Lists as they come, in parts beside the output; a command that was stopped goes on behind the last of them."""

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import write_table, written_whole
from convrec.base.same_request import digest
from convrec.runs.folder import locked
from recipes.batch.chats import Chat

ITEM = pa.struct(
    [
        ("item_id", pa.string()),
        ("title", pa.string()),
        ("clean_title", pa.string()),
        ("year", pa.int32()),
        ("rank", pa.int32()),
        ("score", pa.float32()),
        ("why", pa.string()),
        ("columns", pa.string()),  # JSON
    ]
)
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("id", pa.string()),
        ("items", pa.list_(ITEM)),
        ("reason", pa.string()),
        ("prompt_truncated", pa.bool_()),
        ("unknown", pa.list_(pa.string())),
    ]
)
KEY = b"convrec.recommendations"


class Parts:
    """The folder OUT.parts, of one request: a file of its name, and one for every `size` rows.

    what: everything that determines the lists, as JSON can write it.
    """

    def __init__(self, out: Path, what: Mapping[str, Any], size: int):
        self.out = out
        self.folder = out.with_name(f"{out.name}.parts")
        self.size = size
        self.key = digest({**what, "rows_a_part": size, "columns": str(SCHEMA)})

    def is_done(self) -> bool:
        """Whether the output has the lists of this very request. Raises UserError for a file that is another's."""
        if not self.out.exists():
            return False
        with suppress(pa.ArrowInvalid, OSError):
            if (pq.read_schema(self.out).metadata or {}).get(KEY) == self.key.encode():
                return True
        raise UserError(f"--out {self.out}: already there, of another request; give --overwrite, or another --out")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from these parts. Raises UserError where one has them."""
        path = self.out.with_name(f"{self.out.name}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file, warnings = locked(path)
        except BlockingIOError:
            raise UserError(
                f"--out {self.out}: another process writes these lists; wait for its end, or give another --out"
            ) from None
        for warning in warnings:
            print(warning, file=sys.stderr)
        with file:
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def begin(self) -> bool:
        """Make the folder; parts of another request are removed. Returns whether there were any."""
        own_mark = self.folder / f"{self.key}.request"
        if other := self.folder.exists() and not own_mark.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        own_mark.touch()
        return other

    def missing(self, chats: Iterator[Chat]) -> Iterator[list[Chat]]:
        """The chats of each part that is still to be written."""
        while part := list(islice(chats, self.size)):
            if not self._path(part[0].row).exists():
                yield part

    def rows_done(self) -> int:
        return sum(pq.read_metadata(path).num_rows for path in self.folder.glob("*.parquet"))

    def keep(self, table: pa.Table) -> None:
        write_table(self._path(table["row"][0].as_py()), table)

    def finish(self, rows: int) -> int:
        """Write the output of all parts, in order, and remove them. Returns the number of short lists.

        rows: of all parts. Raises UserError where the parts have another number.
        """
        if (done := self.rows_done()) != rows:
            raise UserError(
                f"{self.folder}: it has {done} lists of {rows}; parts were removed. Start the command again"
            )
        short = 0
        schema = SCHEMA.with_metadata({KEY: self.key})
        with written_whole(self.out) as partial, pq.ParquetWriter(partial, schema) as writer:
            for path in sorted(self.folder.glob("*.parquet")):
                table = pq.read_table(path)
                short += table.num_rows - table["reason"].null_count
                writer.write_table(table.replace_schema_metadata(schema.metadata))
        shutil.rmtree(self.folder)
        return short

    def _path(self, first_row: int) -> Path:
        return self.folder / f"{first_row // self.size:08d}.parquet"
