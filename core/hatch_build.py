"""Compiles the record codec's accelerator while the distribution is built, if that can be done.

It can with CPython, its headers, a C compiler, and Cython, which is asked for only where the others
are there. Otherwise, or with `ODRADEK_PURE_PYTHON=1` in the environment, or where compiling fails,
the distribution is built without it, says so, and works by pure Python.
docs/decisions/0007-accelerator-build.md says why it is done here.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "odradek/record"
MODULE = "_accelerated"


class AcceleratorHook(BuildHookInterface):  # type: ignore[type-arg]  # of any builder's config
    """Adds the compiled module to a wheel, or puts it beside its source for an editable one."""

    def dependencies(self) -> list[str]:
        """Return what compiling needs: nothing where it cannot be done."""
        return [] if self._obstacle() else ["Cython~=3.1", "setuptools>=77"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell the builder of the result."""
        name = MODULE + str(sysconfig.get_config_var("EXT_SUFFIX"))
        beside = Path(self.root, PACKAGE, name)
        obstacle = self._obstacle()
        self._work = Path(tempfile.mkdtemp(prefix="odradek-build-"))
        built = None
        if obstacle is None:
            try:
                built = self._compile()
            except (Exception, SystemExit) as error:  # pure Python is better than no installation
                obstacle = f"compiling it failed: {error}"
        if built is None:
            self.app.display_warning(f"The record codec stays pure Python: {obstacle}")
            if version == "editable":
                beside.unlink(missing_ok=True)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version == "editable":
            # Processes that have the old one loaded keep it: the name gets another file.
            shutil.copy(built, beside.with_suffix(".new"))
            beside.with_suffix(".new").replace(beside)
        else:
            build_data["force_include"][str(built)] = f"{PACKAGE}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was needed to compile."""
        shutil.rmtree(self._work, ignore_errors=True)

    def _obstacle(self) -> str | None:
        if os.environ.get("ODRADEK_PURE_PYTHON", "0") not in {"", "0"}:
            return "ODRADEK_PURE_PYTHON is set"
        if sys.implementation.name != "cpython":
            return f"it is compiled for CPython, not {sys.implementation.name}"
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
        if shutil.which(compiler) is None:
            return f"there is no C compiler {compiler}"
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            return "the headers of Python are not installed"
        return None

    def _compile(self) -> Path:
        from Cython.Build import cythonize
        from setuptools import Distribution, Extension
        from setuptools.command.build_ext import build_ext

        extension = Extension(
            f"{PACKAGE.replace('/', '.')}.{MODULE}",
            [f"{PACKAGE}/{MODULE}.pyx"],
            extra_compile_args=["-O2", "-g0"],  # -O3 is no faster here, and debug symbols are large
        )
        compiled: Any = cythonize  # it has no types
        modules = compiled([extension], build_dir=str(self._work), quiet=True)
        command = build_ext(Distribution({"name": "odradek", "ext_modules": modules}))
        command.build_lib = str(self._work)
        command.build_temp = str(self._work)
        command.ensure_finalized()
        command.run()
        (built,) = command.get_outputs()
        return Path(built)
