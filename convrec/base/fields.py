"""What a setting is: a field of a frozen dataclass, which has its kind, its default, its key and its variable.

    @dataclass(frozen=True, kw_only=True)
    class Example(Settings):
        num_items: Annotated[PositiveInteger, Setting("items of a list", variable="NUM_ITEMS")] = 20

The classes are in convrec.settings, and `ListSettings` in convrec.lists. Variables, overrides, checks, `--help` and the
reference pages are written from the rows that `setting_rows` returns.

They are dataclasses whose values pydantic checks, and no pydantic models: a class has its defaults as attributes, and a
value stays as it is written, where a model would turn 90 into 90.0.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from convrec.base import kinds
from convrec.base.errors import UserError

OURS = "convrec."  # what the keys of settings begin with that are not verl's


@dataclass(frozen=True)
class Setting:
    """What a field says besides its kind and its default; it stands in the field's Annotated type.

    Attributes:
        help: what the setting is for.
        key: its key in the config of a run, or several; "": `convrec.` and the field's name.
        variable: the environment variable that sets it, "" without one.
        also: names by which other trainers call the variable; only those that hardly mean anything else in an
            environment.
        null: what null does, "" where null is refused.
        null_word: null as the variable writes it.
        default: the default in words, where it is no value of the field: conf/ or the machine decides it.
        read: the value of a variable's text, where that is not `kinds.read`.
    """

    help: str
    key: str | tuple[str, ...] = ""
    variable: str = ""
    also: Sequence[str] = ()
    null: str = ""
    null_word: str = "null"
    default: str = ""
    read: Callable[[str], Any] | None = None


@dataclass(frozen=True)
class Key:
    """Another key for a setting of an Annotated type: `learning_rate: Annotated[LearningRate, Key("optim.lr")]`."""

    key: str | tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A field and its setting: the row of the table of settings.

    Attributes:
        field: its name in the class.
        kind: what it may be, except for null; of convrec.base.kinds.
        default: None where it is null, or where conf/ or verl has it.
        setting: the rest.
    """

    field: str
    kind: Any
    default: Any
    setting: Setting

    @property
    def keys(self) -> tuple[str, ...]:
        """Its keys in the config of a run."""
        key = self.setting.key or OURS + self.field
        return key if isinstance(key, tuple) else (key,)

    @property
    def has_default(self) -> bool:
        """Whether the default is ours. Else conf/ has it, as it depends on other settings or on the host, or verl."""
        return self.default is not None or bool(self.setting.null)

    def takes(self, value: Any) -> bool:
        """Whether the setting may have this value."""
        return kinds.fits(self.kind, value) or (value is None and bool(self.setting.null))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings by the names of their fields.

    Raises:
        UserError: a name is unknown, or a value is of another kind.
    """

    # What others call a field, where it is neither its variable nor a key: for the advice about an unknown name.
    synonyms: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, **values: Any) -> Self:
        """Refuse unknown names before the dataclass does, which gives no advice."""
        for name in values:
            if name not in setting_rows(cls):
                raise UserError(f"{name}: no such setting; {_advice(cls, name)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, row in setting_rows(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, os.PathLike):
                object.__setattr__(self, name, os.fspath(value))
            elif value is not None or value != row.default:
                self._check(row, value)

    def _check(self, row: Row, value: Any) -> None:
        if not row.takes(value):
            or_none = ", or None" if row.setting.null else ""
            raise UserError(f"{row.field}={kinds.shown(value)}: expected {kinds.wanted(row.kind)}{or_none}")


def setting_rows(settings: type[Settings]) -> dict[str, Row]:
    """Return the rows of a class of settings by the names of their fields."""
    if settings not in _ROWS:
        _ROWS[settings] = _read_rows(settings)
    return _ROWS[settings]


_ROWS: dict[type[Settings], dict[str, Row]] = {}


def _read_rows(settings: type[Settings]) -> dict[str, Row]:
    hints = get_type_hints(settings, include_extras=True)
    rows = {}
    for field in fields(settings):
        hint = hints[field.name]
        (setting,) = (entry for entry in hint.__metadata__ if isinstance(entry, Setting))
        for entry in hint.__metadata__:
            if isinstance(entry, Key):
                setting = replace(setting, key=entry.key)
        rows[field.name] = Row(field.name, _kind(hint), _default(field), setting)
    return rows


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def rows_by_key(settings: type[Settings]) -> dict[str, Row]:
    """Return the rows of a class of settings by their keys in the config of a run."""
    return {key: row for row in setting_rows(settings).values() for key in row.keys}


def _kind(hint: Any) -> Any:
    """The kind in `Annotated[kind, Setting(...)]` and in `Annotated[kind | None, Setting(...)]`."""
    kind, *metadata = get_args(hint)
    constraints = tuple(entry for entry in metadata if not isinstance(entry, Setting | Key))
    if constraints:
        return Annotated[(kind, *constraints)]
    if get_origin(kind) not in (Union, UnionType):
        return kind
    (without_none,) = [option for option in get_args(kind) if option is not NoneType]
    return without_none


def _advice(settings: type[Settings], name: str) -> str:
    """The field that other trainers, a variable or a key call by this name; else those that look like it."""
    rows = setting_rows(settings)
    for row in rows.values():
        words = (row.setting.variable, *row.setting.also, *(key.rpartition(".")[2] for key in row.keys))
        if name.casefold() in [word.casefold() for word in words]:
            return f"did you mean {row.field}?"
    if name in settings.synonyms:
        return f"did you mean {settings.synonyms[name]}?"
    return kinds.did_you_mean(name, rows)
