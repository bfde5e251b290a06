"""Settings: declared once, structured with every problem named, bounded however they are built."""

from __future__ import annotations

from typing import Literal

import attrs
import pytest

from odradek.config import ConfigError, Secret, setting, settings_of, structure


@attrs.frozen(kw_only=True)
class Oven:
    heat_c: int = setting(180, minimum=50, maximum=300, doc="How hot.", kafka="oven.heat")
    door_open_s: float = setting(0.5, minimum=0, doc="How long the door may be open.")
    fan: bool = setting(False, doc="Whether the fan runs.")
    name: str | None = setting(None, doc="What it is called.")
    mode: str = setting("bake", choices=("bake", "grill"), doc="How it heats.")
    shelves: tuple[str, ...] = setting((), choices=("top", "middle"), doc="Which are in.")
    side: Literal["left", "right"] = setting("left", doc="Where it stands.")
    code: Secret | None = setting(None, doc="Unlocks the door.")
    helper: object = attrs.field(default=None)


def problems_of(table: dict[str, object]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        structure(Oven, table, "oven.toml: [oven]")
    return caught.value.problems


def test_settings_are_those_declared_in_order() -> None:
    declared = settings_of(Oven)
    assert list(declared) == [
        "heat_c",
        "door_open_s",
        "fan",
        "name",
        "mode",
        "shelves",
        "side",
        "code",
    ]
    assert declared["heat_c"].kafka == "oven.heat"
    assert declared["heat_c"].default == 180
    assert declared["heat_c"].doc == "How hot."


def test_structure_takes_plain_values() -> None:
    oven = structure(
        Oven,
        {"heat_c": 200, "door_open_s": 2, "fan": True, "name": "Ed", "shelves": ["top"]},
        "here",
    )
    assert oven == Oven(heat_c=200, door_open_s=2.0, fan=True, name="Ed", shelves=("top",))
    assert type(oven.door_open_s) is float


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"heat": 1}, "unknown key 'heat'; did you mean \"heat_c\"?"),
        ({"zzzz": 1}, "unknown key 'zzzz'"),
        ({"heat_c": "180"}, 'heat_c: expected a whole number, found the string "180"'),
        ({"heat_c": True}, "heat_c: expected a whole number, found true"),
        ({"heat_c": 1.5}, "heat_c: expected a whole number, found 1.5"),
        ({"fan": 1}, "fan: expected true or false, found 1"),
        ({"name": []}, "name: expected a string, found a list"),
        ({"name": {}}, "name: expected a string, found a table"),
        ({"shelves": "top"}, 'shelves: expected a list, found the string "top"'),
        ({"shelves": ["top", "roof"]}, "shelves: 'roof' is not one of top, middle"),
        ({"heat_c": 49}, "heat_c: 49 is less than 50"),
        ({"heat_c": 301}, "heat_c: 301 is more than 300"),
        ({"mode": "fry"}, "mode: 'fry' is not one of bake, grill"),
        ({"side": "top"}, "side: expected one of 'left', 'right', found the string \"top\""),
        ({"door_open_s": float("nan")}, "door_open_s: it is not a number"),
    ],
)
def test_structure_names_the_place_and_what_would_be_right(
    table: dict[str, object], problem: str
) -> None:
    assert problems_of(table) == (f"oven.toml: [oven]: {problem}",)


def test_structure_reports_every_problem_at_once() -> None:
    assert len(problems_of({"heat": 1, "fan": 1, "mode": "fry"})) == 3


def test_structure_reports_what_is_missing_with_its_meaning() -> None:
    @attrs.frozen(kw_only=True)
    class Door:
        key: str = setting(doc="Opens it.")

    with pytest.raises(ConfigError, match=r"here: key is missing: Opens it\."):
        structure(Door, {}, "here")


def test_structure_reports_what_the_class_checks_itself() -> None:
    @attrs.frozen(kw_only=True)
    class Range:
        low: int = setting(0, doc="From.")
        high: int = setting(9, doc="To.")

        def __attrs_post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("low is above high")

    with pytest.raises(ConfigError, match="here: low is above high"):
        structure(Range, {"low": 10}, "here")


def test_bounds_hold_when_the_class_is_built_directly() -> None:
    with pytest.raises(ValueError, match="heat_c: 301 is more than 300"):
        Oven(heat_c=301)


def test_secret_comes_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("OVEN_CODE", "1234")
    oven = structure(Oven, {"code": "env:OVEN_CODE"}, "here")
    assert oven.code is not None
    assert oven.code.reveal() == "1234"
    path = f"{tmp_path}/code"
    with open(path, "w", encoding="utf-8") as file:
        file.write("5678\n")
    from_file = structure(Oven, {"code": f"file:{path}"}, "here")
    assert from_file.code == Secret("5678")
    assert from_file.code != oven.code


def test_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVEN_CODE", "hunter2")
    oven = structure(Oven, {"code": "env:OVEN_CODE"}, "here")
    for shown in (repr(oven), str(oven.code), f"{oven.code:>9}", f"{oven.code}"):
        assert "hunter2" not in shown
    assert "code=***" in repr(oven)
    with pytest.raises(TypeError):
        oven.code.__reduce_ex__(2)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("hunter2", 'write "env:NAME" or "file:PATH"'),
        (["hunter2"], 'expected "env:NAME" or "file:PATH"'),
        ("env:ODRADEK_NO_SUCH", "ODRADEK_NO_SUCH is not set"),
        ("file:/no/such/file", "cannot read the file /no/such/file"),
    ],
)
def test_unreadable_secret_is_explained_without_showing_it(value: object, problem: str) -> None:
    (line,) = problems_of({"code": value})
    assert problem in line
    assert "hunter2" not in line
