"""Lists stored in parts next to the output as they are generated, so that an interrupted command can resume."""

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
from convrec.base.files import atomic_write, write_table
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
    """The folder OUT.parts of one request, with a marker file and one file for every `size` rows."""

    def __init__(self, out: Path, request: Mapping[str, Any], size: int):
        """Set up the parts of a request.

        Args:
            out: parquet file to write.
            request: everything that determines the lists, as JSON.
            size: rows per part.
        """
        self.out = out
        self.folder = out.with_name(f"{out.name}.parts")
        self.size = size
        self.key = digest({**request, "rows_a_part": size, "columns": str(SCHEMA)})

    def is_done(self) -> bool:
        """Return whether the output has the lists of this request.

        Raises:
            UserError: the output exists, but was made by another request or is another file.
        """
        if not self.out.exists():
            return False
        with suppress(pa.ArrowInvalid, OSError):
            if (pq.read_schema(self.out).metadata or {}).get(KEY) == self.key.encode():
                return True
        raise UserError(
            "recommend.other-output",
            f"--out {self.out}: exists, from another request. Add --overwrite, or name another --out.",
        )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the parts against other processes during the block.

        Storage without locks gives a warning on stderr.

        Raises:
            UserError: another process has locked them.
        """
        path = self.out.with_name(f"{self.out.name}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file, warnings = locked(path)
        except BlockingIOError:
            raise UserError(
                "recommend.locked-output",
                f"--out {self.out}: another process is writing these lists. Wait for it, or name another --out.",
            ) from None
        for warning in warnings:
            print(warning, file=sys.stderr)
        with file:
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def begin(self) -> bool:
        """Create the folder; remove parts of another request, and return whether there were any."""
        marker = self.folder / f"{self.key}.request"
        if other := self.folder.exists() and not marker.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
        return other

    def iter_missing(self, chats: Iterator[Chat]) -> Iterator[list[Chat]]:
        """Yield the chats of each part that is not written yet."""
        while part := list(islice(chats, self.size)):
            if not self._path(part[0].row).exists():
                yield part

    def count_rows(self) -> int:
        """Count the rows of all written parts."""
        return sum(pq.read_metadata(path).num_rows for path in self.folder.glob("*.parquet"))

    def write_part(self, table: pa.Table) -> None:
        """Write the lists of a part."""
        write_table(self._path(table["row"][0].as_py()), table)

    def finish(self, rows: int) -> int:
        """Write the output from all parts, in order, remove them, and return the number of short lists.

        Args:
            rows: number of rows of all parts.

        Raises:
            UserError: The parts have another number of rows.
        """
        if (done := self.count_rows()) != rows:
            raise UserError(
                "recommend.missing-parts",
                f"{self.folder}: has {done} of {rows} lists, because parts were removed. Start the command again.",
            )
        short = 0
        schema = SCHEMA.with_metadata({KEY: self.key})
        with atomic_write(self.out) as partial, pq.ParquetWriter(partial, schema) as writer:
            for path in sorted(self.folder.glob("*.parquet")):
                table = pq.read_table(path)
                short += table.num_rows - table["reason"].null_count
                writer.write_table(table.replace_schema_metadata(schema.metadata))
        shutil.rmtree(self.folder)
        return short

    def _path(self, first_row: int) -> Path:
        return self.folder / f"{first_row // self.size:08d}.parquet"
