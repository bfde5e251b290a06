"""`odradek version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, entry_points
from importlib.metadata import version as version_of

import click

from odradek.cli.tables import format_option, show_json, show_pairs

__all__ = ["version"]


@click.command()
@format_option
def version(form: str) -> None:
    """Print the versions of Odradek, its plugins and what they run on."""
    from odradek.record import implementation

    found = {"odradek": version_of("odradek")}
    for entry_point in entry_points(group="odradek"):
        if entry_point.dist is not None and entry_point.dist.name != "odradek":
            found[entry_point.dist.name] = entry_point.dist.version
    for library in ("trio", "cramjam", "crc32c"):
        try:
            found[library] = version_of(library)
        except PackageNotFoundError:
            found[library] = "missing"
    found["record codec"] = implementation()
    found["python"] = platform.python_version()
    found["system"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    if form == "json":
        show_json(found)
    else:
        show_pairs(found.items())
