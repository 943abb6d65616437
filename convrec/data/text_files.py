"""Read text files of any common compression and encoding line by line."""

import codecs
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from convrec.base.errors import UserError
from convrec.data.damage import BadRecord, get_compression, get_suffix

LONGEST_LINE = 8 << 20  # bytes; reading takes up to 32 times as much memory (notes/data.md)
CUT_OFF = (gzip.BadGzipFile, EOFError, zlib.error)  # errors of reading a damaged .gz
UTF8 = "utf-8"
WINDOWS = "cp1252"  # Excel and older programs write it in Western Europe and the Americas
_CHUNK_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 16
_NO_TABLES = (".jsonl", ".ndjson", ".json", ".parquet", ".xlsx", ".xlsm")
_START_BYTES = 1 << 12  # enough to recognize UTF-16 without a byte order mark
_MARKS = {  # longer ones first: UTF-32's little-endian mark begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_NO_UTF8 = re.compile("[\udc80-\udcff]")  # invalid bytes, as `surrogateescape` decodes them
_BEYOND_ASCII = re.compile("[^\x00-\x7f\udc80-\udcff]")
_PUNCTUATION = frozenset("‘’“”„‚–—…•·€£¥§©®™°±½¼¾²³«»‹›¿¡ºª´¨\u00a0\u00ad")
_WORD = re.compile(r"[^\W\d_]+")


def iter_lines(path: Path, is_table: bool = False) -> Iterator[tuple[int, str | BadRecord]]:
    """Read a file line by line; lines that are too long are skipped in pieces.

    Args:
        path: the file.
        is_table: whether it is CSV or similar, which programs also write in a local encoding.

    Yields:
        The line's number, from 1, and its text or its problem.
    """
    with open_bytes(path) as file:
        line = 0
        while raw := file.readline(LONGEST_LINE + 1):
            line += 1
            if len(raw) > LONGEST_LINE:
                while not raw.endswith(b"\n") and (raw := file.readline(LONGEST_LINE)):
                    pass
                problem = BadRecord(
                    "text.line-too-long", "longer than %s MiB; shorten it, or write parquet", LONGEST_LINE >> 20
                )
                yield line, problem
                continue
            try:
                yield line, raw.decode("utf-8-sig" if line == 1 else UTF8)
            except UnicodeDecodeError as error:
                if is_table and detect_encoding(path) == WINDOWS:
                    yield line, raw.decode(WINDOWS, "replace")
                else:
                    problem = BadRecord(
                        "text.not-utf8",
                        "not UTF-8 (byte %s: %s); save the file as UTF-8",
                        error.start,
                        error.reason,
                    )
                    yield line, problem


def open_bytes(path: Path) -> BinaryIO:
    """Open a file decompressed, with UTF-16 and UTF-32 converted to UTF-8.

    Raises:
        UserError: the file is not valid UTF-16 or UTF-32, although it looks like it.
    """
    with _open_decompressed(path) as file:
        encoding = _find_unicode(file.read(_START_BYTES))
    file = _open_decompressed(path)
    if encoding == UTF8:
        return file
    with file:
        content = file.read()
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding.upper()
        if error.end == len(content):
            problem = f"truncated {name} file: it ends within a character. Download or copy it again"
        else:
            problem = f"not {name} (byte {error.start}: {error.reason}); save it as UTF-8"
        raise UserError("text.invalid-encoding", f"{path}: {problem}") from None
    return io.BytesIO(text.encode(errors="surrogatepass"))


def detect_encoding(path: Path) -> str:
    """Return a text file's encoding: utf-8, utf-16 (with -le or -be if it has no mark), utf-32 or cp1252.

    cp1252 is a guess: everything that is not UTF-8 makes sense in it.
    """
    status = path.stat()
    return _detect_encoding(path, status.st_mtime_ns, status.st_size)[0]


def is_table(path: Path) -> bool:
    """Return whether a file is read as CSV or similar; a `.txt` file is if its first line has tabs (from Excel)."""
    kind = get_suffix(path)
    if kind == ".txt":
        return "\t" in str(next(iter_lines(path, is_table=True), (1, ""))[1])
    return kind not in _NO_TABLES


def describe_encoding(path: Path) -> str | None:
    """Return a note about a table's guessed encoding, with words to judge it by; None if nothing was guessed."""
    if not is_table(path):
        return None
    status = path.stat()
    encoding, words = _detect_encoding(path, status.st_mtime_ns, status.st_size)
    if encoding != WINDOWS:
        return None
    return f"{path}: not UTF-8, read as Windows-1252: {', '.join(words)}. If these words are wrong, save it as UTF-8"


@lru_cache(maxsize=64)
def _detect_encoding(path: Path, modified_ns: int, size: int) -> tuple[str, tuple[str, ...]]:
    """Return (encoding, some non-ASCII words). Time and size only distinguish versions of the file for the cache."""
    with _open_decompressed(path) as file:
        encoding = _find_unicode(file.read(_START_BYTES))
    if encoding != UTF8:
        return encoding, ()
    num_utf8 = num_others = 0
    sample = bytearray()
    decoder = codecs.getincrementaldecoder(UTF8)("surrogateescape")
    with _open_decompressed(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            text = decoder.decode(chunk)
            num_utf8 += len(_BEYOND_ASCII.findall(text))
            if others := _NO_UTF8.findall(text):
                num_others += len(others)
                sample += text.encode(UTF8, "surrogateescape") if len(sample) < _SAMPLE_BYTES else b""
    if num_others <= num_utf8:  # UTF-8 with some damage
        return UTF8, ()
    words = _find_windows_words(bytes(sample))
    return (WINDOWS, words) if words else (UTF8, ())


def _find_windows_words(sample: bytes) -> tuple[str, ...]:
    """Return the most common words with accents in Windows-1252 text, () for text in another encoding.

    Read as Windows-1252, Cyrillic, Greek or Chinese bytes become words of nothing but accents, or rare symbols.
    """
    try:
        text = sample.decode(WINDOWS)
    except UnicodeDecodeError:
        return ()
    if any(not character.isascii() and not character.isalpha() and character not in _PUNCTUATION for character in text):
        return ()
    words = [word for word in _WORD.findall(text) if not word.isascii()]
    if any(len(word) > 2 and not any(map(str.isascii, word)) for word in words):
        return ()
    signs = [character for character in text if character in _PUNCTUATION]
    return tuple(word for word, _ in Counter(words or signs).most_common(5))


def _find_unicode(start: bytes) -> str:
    """Return UTF-16 or UTF-32 if a file begins with its mark, UTF-16 also by its NUL bytes, else UTF-8."""
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            return encoding
    # UTF-16 has one NUL byte per ASCII character, always at even or always at odd positions.
    num_nuls_at_even = start[::2].count(0)
    num_nuls_at_odd = start[1::2].count(0)
    if max(num_nuls_at_even, num_nuls_at_odd) > len(start) // 8 and 0 in (num_nuls_at_even, num_nuls_at_odd):
        return "utf-16-le" if num_nuls_at_odd else "utf-16-be"
    return UTF8


def _open_decompressed(path: Path) -> BinaryIO:
    match get_compression(path):
        case ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        case ".zst":
            return cast(BinaryIO, io.BufferedReader(pa.input_stream(str(path), compression="zstd")))
        case _:
            return path.open("rb")
