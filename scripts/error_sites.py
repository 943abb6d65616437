"""The errors that a user can meet, read from the source of the packages."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ERRORS = ("UserError", "StateUnreadable")  # the class, and a subclass whose calls give a code
RECORD_ERROR = "BadRecord"  # of a row of a file: its message has %s and %r for the values that follow it
PACKAGES = ("convrec", "recipes", "reward", "data_prep")
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class ErrorSite:
    """A place in the source that raises a UserError or finds a BadRecord.

    Attributes:
        code: the code, "" where the call gives none as a literal.
        sentence: the message with its expressions in braces, as an f-string has them.
        module: path of the source file below the root.
        line: of the call, from 1.
    """

    code: str
    sentence: str
    module: str
    line: int


def iter_error_sites(root: Path = ROOT) -> Iterator[ErrorSite]:
    """Yield every call of ERRORS and RECORD_ERROR in the packages below root, in order of path and line."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            module = path.relative_to(root).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (*ERRORS, RECORD_ERROR):
                    yield _read_site(node, module)


def _read_site(call: ast.Call, module: str) -> ErrorSite:
    code = call.args[0]
    is_literal = isinstance(code, ast.Constant) and isinstance(code.value, str) and len(call.args) > 1
    if ast.unparse(call.func) == RECORD_ERROR:
        sentence = _fill(_read_sentence(call.args[1]), call.args[2:]) if is_literal else ""
    else:
        sentence = " ".join(map(_read_sentence, call.args[1:]))
    return ErrorSite(str(code.value) if is_literal else "", sentence, module, call.lineno)  # type: ignore[attr-defined]


def _fill(sentence: str, values: Sequence[ast.expr]) -> str:
    """Put the values, in braces, in the places of %s and %r."""
    sources = iter(values)
    return re.sub("%[rs]", lambda _: f"{{{ast.unparse(next(sources))}}}", sentence)


def _read_sentence(node: ast.expr) -> str:
    """Return a message as a template: literal text, and every other expression in braces."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(_read_sentence, values))
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _read_sentence(left) + _read_sentence(right)
    return f"{{{ast.unparse(node)}}}"
