"""One definition for each setting: an attrs field with its type, default, bounds and prose.

`setting` declares it; `settings_of` reads the declarations back for the reference documentation,
DescribeConfigs and `odradek config`; `structure` turns a table of plain values (TOML, options)
into the class. Plugins declare theirs with the same `setting`.

Structuring is done here by hand rather than by cattrs: docs/decisions/0003-structuring-by-hand.md.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import (
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import attrs

from odradek.config.secret import Secret, SecretUnreadable
from odradek.errors import OdradekError

__all__ = ["ConfigError", "Setting", "nearest", "setting", "settings_of", "structure"]

T = TypeVar("T")


class ConfigError(OdradekError):
    """The configuration cannot be used as it stands; `problems` lists everything wrong with it.

    Each problem is one line that names the place (file, section, key) and what would be right.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@attrs.frozen(slots=True)
class Setting:
    """One setting as declared.

    `name` is the key in the configuration, `type` its Python type (unions included), `default`
    its default (None with `required`: there is none), `kafka` Kafka's name for the same thing.
    `choices`, `minimum`, `maximum` bound the value; `check` returns what is wrong with it, or None.
    """

    name: str
    type: Any
    default: Any
    required: bool
    doc: str
    kafka: str | None
    choices: tuple[str, ...]
    minimum: float | None
    maximum: float | None
    check: Callable[[Any], str | None] | None
    extra: Mapping[str, Any]

    def problem(self, value: object) -> str | None:
        """Say what is wrong with a value of the right type, or None."""
        parts = value if isinstance(value, tuple) else (value,)
        for part in parts:
            if self.choices and part is not None and part not in self.choices:
                return f"{part!r} is not one of {', '.join(self.choices)}"
            if isinstance(part, (int, float)) and not isinstance(part, bool):
                if math.isnan(part):  # NaN passes every comparison below
                    return "it is not a number"
                if self.minimum is not None and part < self.minimum:
                    return f"{part} is less than {self.minimum}"
                if self.maximum is not None and part > self.maximum:
                    return f"{part} is more than {self.maximum}"
        if self.check is not None and value is not None:
            return self.check(value)
        return None


def _validate(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    found = settings_of(type(instance))[attribute.name].problem(value)
    if found is not None:
        raise ValueError(f"{attribute.name}: {found}")


@overload
def setting(
    default: T,
    *,
    doc: str,
    kafka: str | None = ...,
    choices: Sequence[str] = ...,
    minimum: float | None = ...,
    maximum: float | None = ...,
    check: Callable[[Any], str | None] | None = ...,
    **extra: Any,
) -> T: ...


@overload
def setting(
    *,
    doc: str,
    kafka: str | None = ...,
    choices: Sequence[str] = ...,
    minimum: float | None = ...,
    maximum: float | None = ...,
    check: Callable[[Any], str | None] | None = ...,
    **extra: Any,
) -> Any: ...


def setting(
    default: Any = attrs.NOTHING,
    *,
    doc: str,
    kafka: str | None = None,
    choices: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    check: Callable[[Any], str | None] | None = None,
    **extra: Any,
) -> Any:
    """Declare a setting as a field of an attrs class (`@attrs.frozen(kw_only=True)`).

    `default`: an immutable value; left out, the setting is required. `doc`: prose for the
    operator, in Markdown. `kafka`: Kafka's name for the same setting. `choices`: the strings
    allowed. `minimum`, `maximum`: inclusive bounds. `check`: returns what is wrong, or None.
    Sizes and durations are plain numbers with the unit at the end of the name: `_bytes`, `_ms`,
    `_s`. The bounds hold however the class is built (ValueError).
    """
    metadata = {
        "doc": doc,
        "kafka": kafka,
        "choices": tuple(choices),
        "minimum": minimum,
        "maximum": maximum,
        "check": check,
        "extra": extra,
    }
    return attrs.field(default=default, validator=_validate, metadata=metadata)


def settings_of(cls: type[Any]) -> Mapping[str, Setting]:
    """Return the settings that a class declares, by name and in order."""
    return _settings_of(cast("Hashable", cls))  # mypy 2.4 does not see that classes are


@lru_cache(maxsize=64)  # a process has a dozen settings classes, read once per validated field
def _settings_of(cls: Hashable) -> Mapping[str, Setting]:
    assert isinstance(cls, type)
    hints = get_type_hints(cls)
    found: dict[str, Setting] = {}
    for attribute in attrs.fields(cls):
        metadata = attribute.metadata
        if "doc" not in metadata:  # not declared by `setting`
            continue
        required = attribute.default is attrs.NOTHING
        found[attribute.name] = Setting(
            name=attribute.name,
            type=hints[attribute.name],
            default=None if required else attribute.default,
            required=required,
            doc=metadata["doc"],
            kafka=metadata["kafka"],
            choices=metadata["choices"],
            minimum=metadata["minimum"],
            maximum=metadata["maximum"],
            check=metadata["check"],
            extra=metadata["extra"],
        )
    return types.MappingProxyType(found)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "x"?` for the most similar known name, or nothing."""
    import difflib  # only needed to explain a mistake

    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f'; did you mean "{found[0]}"?' if found else ""


def structure(
    cls: type[T], table: Mapping[str, object], place: str, given: Mapping[str, Any] | None = None
) -> T:
    """Build `cls` from a table of plain values, as TOML gives them, and from fields `given`.

    Raises ConfigError with every problem found: unknown keys (with the nearest valid name),
    missing ones, wrong types, values out of bounds, and a ValueError of the class's own.
    `place` starts each line.
    """
    declared = settings_of(cls)
    problems: list[str] = []
    values: dict[str, Any] = {}
    for key, value in table.items():
        known = declared.get(key)
        if known is None:
            problems.append(f"{place}: unknown key {key!r}{nearest(key, declared)}")
            continue
        try:
            values[key] = converted(known.type, value)
        except (_WrongType, SecretUnreadable) as error:
            problems.append(f"{place}: {key}: {error}")
            continue
        found = known.problem(values[key])
        if found is not None:
            problems.append(f"{place}: {key}: {found}")
    problems += [
        f"{place}: {name} is missing: {known.doc}"
        for name, known in declared.items()
        if known.required and name not in table
    ]
    if problems:
        raise ConfigError(problems)
    try:
        return cls(**values, **(given or {}))
    except ValueError as error:  # what the class checks over several of its fields
        raise ConfigError([f"{place}: {error}"]) from None


class _WrongType(Exception):
    """A value of another type than the setting's; the message says which was expected."""


_EXPECTED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
}


def converted(wanted: Any, value: object) -> object:
    """Return `value` as the type of a setting. Raises _WrongType, SecretUnreadable."""
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        members = [member for member in get_args(wanted) if member is not type(None)]
        if len(members) != 1:
            raise TypeError(f"a setting is of one type or None, not {wanted}")
        return converted(members[0], value)
    if origin is tuple:
        item = get_args(wanted)[0]
        if not isinstance(value, (list, tuple)):
            raise _WrongType(f"expected a list, found {_shown(value)}")
        return tuple(converted(item, each) for each in value)
    if origin is Literal:
        if value not in get_args(wanted):
            choices = ", ".join(map(repr, get_args(wanted)))
            raise _WrongType(f"expected one of {choices}, found {_shown(value)}")
        return value
    if wanted is Secret:
        if not isinstance(value, str):
            raise _WrongType('expected "env:NAME" or "file:PATH"')  # and do not show the value
        return Secret.read(value)
    expected = _EXPECTED.get(cast("type[Any]", wanted))
    if expected is None:
        raise TypeError(f"a setting cannot be of type {wanted}")
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:  # not isinstance: True is an int
        raise _WrongType(f"expected {expected}, found {_shown(value)}")
    return value


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'the string "{value}"' if len(value) <= 40 else f'the string "{value[:40]}..."'
    if isinstance(value, (dict, Mapping)):
        return "a table"
    if isinstance(value, (list, tuple)):
        return "a list"
    return str(value)
