"""The distribution is built with the compiled codec where it can be, and without it otherwise.

By hatchling in a copy of core, as pip calls it, but without the isolated environment that pip
fetches: the dependency group `build` has what it needs.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.record.implementations import can_compile

CORE = Path(__file__).parents[2] / "core"
COMPILED = f"odradek/record/_accelerated{sysconfig.get_config_var('EXT_SUFFIX')}"
SAYS = "The record codec stays pure Python"

needs_compiler = pytest.mark.skipif(not can_compile(), reason="there is no C compiler")
pytestmark = pytest.mark.skipif(
    os.environ.get("ODRADEK_REQUIRE_ALL") != "1"
    and not all(find_spec(name) for name in ("hatchling", "Cython", "setuptools")),
    reason="the dependency group `build` is not installed",
)


@pytest.fixture
def source(tmp_path):
    """A copy of core, with nothing in it that was compiled."""
    return _copy(tmp_path)


def _copy(to: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyc")
    return Path(shutil.copytree(CORE, to / "core", ignore=ignored))


def _python(source, code, **environment):
    without = {name: v for name, v in os.environ.items() if name not in {"CC", "CFLAGS"}}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=source,
        env={**without, "ODRADEK_PURE_PYTHON": "0", **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )


def _build(source, kind, **environment) -> tuple[Path, str]:
    """Build as pip does (PEP 517), and return what was written and said."""
    code = f"from hatchling import build; print(build.build_{kind}('dist'))"
    done = _python(source, code, **environment)
    return source / "dist" / done.stdout.split()[-1], done.stdout + done.stderr


def _needs(source, **environment):
    code = "from hatchling import build; print(*build.get_requires_for_build_wheel())"
    return _python(source, code, **environment).stdout.split()


@pytest.fixture(scope="module")
def compiled_wheel(tmp_path_factory):
    """A wheel, built where an editable installation left compiled files, and what was said."""
    source = _copy(tmp_path_factory.mktemp("compiled"))
    for name in (COMPILED, "odradek/record/_accelerated.cpython-39-other.so"):
        (source / name).write_bytes(b"of older sources")
    return _build(source, "wheel")


@needs_compiler
def test_a_wheel_has_the_compiled_codec_and_says_for_what_it_is(compiled_wheel):
    wheel, said = compiled_wheel
    assert [name for name in ZipFile(wheel).namelist() if name.endswith((".so", ".c"))] == [
        COMPILED
    ]
    assert ZipFile(wheel).read(COMPILED) != b"of older sources"
    assert "-py3-none-any" not in wheel.name
    assert f"cp{sys.version_info.major}{sys.version_info.minor}" in wheel.name
    assert SAYS not in said


@needs_compiler
def test_what_was_compiled_works_where_it_is_unpacked(compiled_wheel, tmp_path):
    ZipFile(compiled_wheel[0]).extractall(tmp_path / "site")
    code = (
        "from odradek import record\n"
        "builder = record.BatchBuilder(1000)\n"
        "builder.extend(5, [b'v'])\n"
        "print(record.implementation(), record.__file__, record.decode_records(builder.build()))"
    )
    said = _python(tmp_path, code, PYTHONPATH=str(tmp_path / "site")).stdout
    assert said.startswith("compiled (Cython ")
    assert str(tmp_path / "site") in said
    assert "Record(offset=0, timestamp=5, key=None, value=b'v', headers=())" in said


@needs_compiler
def test_an_editable_wheel_has_it_beside_its_source(source):
    wheel, said = _build(source, "editable")
    assert (source / COMPILED).exists()
    assert not any(name.endswith(".so") for name in ZipFile(wheel).namelist())
    assert SAYS not in said
    _build(source, "editable", ODRADEK_PURE_PYTHON="1")
    assert not (source / COMPILED).exists(), "an old one would still be loaded"


def _assert_pure(wheel, said, why):
    assert wheel.name.endswith("-py3-none-any.whl")
    names = ZipFile(wheel).namelist()
    assert "odradek/record/pure.py" in names
    assert not any(name.endswith(".so") for name in names)
    assert SAYS in said
    assert why in said


@needs_compiler
def test_a_compiler_that_fails_gives_pure_python(source):
    _assert_pure(*_build(source, "wheel", CC=shutil.which("false")), "compiling it failed")


@needs_compiler
def test_without_cython_it_is_pure_python(source):
    (source / "Cython.py").write_text("raise ImportError('no Cython here')\n")
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    _assert_pure(*_build(source, "wheel", PYTHONPATH=path), "no Cython here")


def test_without_a_compiler_it_is_pure_python_and_needs_nothing(source):
    missing = {"CC": "/nowhere/cc -m64"}
    _assert_pure(*_build(source, "wheel", **missing), "there is no C compiler /nowhere/cc")
    assert _needs(source, **missing) == []


def test_what_an_editable_installation_compiled_is_left_out(source):
    (source / COMPILED).write_bytes(b"of older sources")
    _assert_pure(*_build(source, "wheel", ODRADEK_PURE_PYTHON="1"), "is set")
    archive, _ = _build(source, "sdist")
    with tarfile.open(archive) as opened:
        assert not any(name.endswith(".so") for name in opened.getnames())


def test_the_environment_asks_for_pure_python(source):
    _assert_pure(*_build(source, "wheel", ODRADEK_PURE_PYTHON="1"), "ODRADEK_PURE_PYTHON is set")
    assert _needs(source, ODRADEK_PURE_PYTHON="1") == []


@needs_compiler
def test_cython_is_asked_for_where_there_is_a_compiler(source):
    assert [need.split("~")[0].split(">")[0] for need in _needs(source)] == ["Cython", "setuptools"]


def test_the_source_distribution_has_what_a_build_needs(source):
    archive, _ = _build(source, "sdist")
    with tarfile.open(archive) as opened:
        names = {name.split("/", 1)[1] for name in opened.getnames()}
    record = {path.name for path in (CORE / "odradek/record").glob("*.p*") if path.is_file()}
    assert {"_accelerated.pyx", "_accelerated_reading.pxi", "pure.py"} <= record
    assert {"hatch_build.py", *(f"odradek/record/{name}" for name in record)} <= names
    assert not any(name.endswith((".so", ".c")) for name in names)
