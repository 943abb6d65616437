"""Define settings as fields of frozen dataclasses, each with its kind, default, key and variable.

    @dataclass(frozen=True, kw_only=True)
    class Example(Settings):
        num_items: Annotated[PositiveInteger, Setting("items of a list", variable="NUM_ITEMS")] = 20

The classes are in convrec.settings; `ListSettings` is in convrec.lists. Variables, overrides, checks, `--help` and the
reference pages are generated from the rows that `setting_rows` returns.

They are dataclasses whose values pydantic checks, not pydantic models: a class has its defaults as attributes, and
values stay as written, while a model would turn 90 into 90.0.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from convrec.base import kinds
from convrec.base.errors import UserError

OURS = "convrec."  # prefix of the keys that are not verl's


@dataclass(frozen=True)
class Setting:
    """The properties of a field other than its kind and default; part of its Annotated type.

    Attributes:
        help: what the setting is for.
        key: its key in the config of a run, or several; "": `convrec.` and the field's name.
        variable: the environment variable that sets it, "" for none.
        also: names of the variable in other trainers, if they can hardly mean anything else in an environment.
        null: what null does, "" if null is refused.
        null_word: how the variable writes null.
        default: a description of the default, if conf/ or the machine decides it.
        read: converts the text of the variable, if `kinds.read` does not.
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
    """Another key for an annotated setting: `learning_rate: Annotated[LearningRate, Key("optim.lr")]`."""

    key: str | tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A row in the table of settings.

    Attributes:
        field: the name of the field in its class.
        kind: its kind without null, from convrec.base.kinds.
        default: None if it is null, or if conf/ or verl has it.
        setting: the other properties.
    """

    field: str
    kind: Any
    default: Any
    setting: Setting

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the setting in the config of a run."""
        key = self.setting.key or OURS + self.field
        return key if isinstance(key, tuple) else (key,)

    @property
    def has_default(self) -> bool:
        """Whether the class has the default; otherwise conf/ (if it depends on other settings or the host) or verl."""
        return self.default is not None or bool(self.setting.null)

    def takes(self, value: Any) -> bool:
        """Return whether the setting may have this value."""
        return kinds.is_valid(self.kind, value) or (value is None and bool(self.setting.null))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of settings; its arguments are the values of fields by name.

    Raises:
        UserError: a name is unknown, or a value is of another kind.
    """

    # Other names of a field than its variable and its keys, for the hint about an unknown name.
    synonyms: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, **values: Any) -> Self:
        """Refuse unknown names before the dataclass does, whose error has no hint."""
        for name in values:
            if name not in setting_rows(cls):
                raise UserError("settings.unknown-field", f"{name}: no such setting; {_suggest_field(cls, name)}")
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
            raise UserError(
                "settings.wrong-field-kind",
                f"{row.field}={kinds.to_yaml_scalar(value)}: expected {kinds.describe_type(row.kind)}{or_none}",
            )


def setting_rows(settings: type[Settings]) -> dict[str, Row]:
    """Return the rows of a class of settings by field name."""
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
        rows[field.name] = Row(field=field.name, kind=_get_kind(hint), default=_get_default(field), setting=setting)
    return rows


def _get_default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def rows_by_key(settings: type[Settings]) -> dict[str, Row]:
    """Return the rows of a class of settings by key in the config of a run."""
    return {key: row for row in setting_rows(settings).values() for key in row.keys}


def _get_kind(hint: Any) -> Any:
    """Return the kind in `Annotated[kind, Setting(...)]` or `Annotated[kind | None, Setting(...)]`."""
    kind, *metadata = get_args(hint)
    constraints = tuple(entry for entry in metadata if not isinstance(entry, Setting | Key))
    if constraints:
        return Annotated[(kind, *constraints)]
    if get_origin(kind) not in (Union, UnionType):
        return kind
    (without_none,) = [option for option in get_args(kind) if option is not NoneType]
    return without_none


def _suggest_field(settings: type[Settings], name: str) -> str:
    """Suggest the field that a variable, a key or another trainer calls by this name, else similar ones."""
    rows = setting_rows(settings)
    for row in rows.values():
        words = (row.setting.variable, *row.setting.also, *(key.rpartition(".")[2] for key in row.keys))
        if name.casefold() in [word.casefold() for word in words]:
            return f"did you mean {row.field}?"
    if name in settings.synonyms:
        return f"did you mean {settings.synonyms[name]}?"
    return kinds.did_you_mean(name, rows)
