"""The two implementations of the codec, and which of them a test has in force."""

import os
import shlex
import shutil
import sysconfig
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from odradek.record import kernel, pure
from odradek.record.builder import BatchBuilder

NAMES = ("pure", "compiled")


def load(name: str) -> Any:
    """Return the implementation; skip the test where the compiled one is not there and need not."""
    if name == "pure":
        return pure
    try:
        return import_module("odradek.record._accelerated")
    except ModuleNotFoundError:
        wanted = "CI" in os.environ or os.environ.get("ODRADEK_REQUIRE_ALL") == "1"
        if wanted and can_compile():
            pytest.fail("the compiled codec is missing, though there is a compiler")
        pytest.skip("the compiled codec is not installed")


def can_compile() -> bool:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which(compiler) is not None and header.exists()


def new_builder(max_bytes: int, **options: Any) -> BatchBuilder:
    """Make a builder of the implementation in force."""
    return kernel.active.BatchBuilder(max_bytes, **options)
