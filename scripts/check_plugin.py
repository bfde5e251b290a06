"""Check that a plugin, installed alone beside core, is found and supplies something.

python scripts/check_plugin.py storage_file
"""

from __future__ import annotations

import sys

from odradek.plugins import load


def main(name: str) -> int:
    """Load every plugin and look for the one called `name`."""
    infos = {info.name: info for info in load().describe()}
    info = infos.get(name)
    if info is None:
        print(f"no entry point {name!r}; found: {', '.join(infos)}", file=sys.stderr)
        return 1
    if info.problem is not None or not info.schemes:
        print(f"{info.owner}: {info.problem or 'it supplies nothing'}", file=sys.stderr)
        return 1
    strangers = sorted(
        {each.distribution for each in infos.values()} - {"odradek", info.distribution}
    )
    if strangers:
        print(f"not alone: {', '.join(strangers)} is installed too", file=sys.stderr)
        return 1
    schemes = ", ".join(
        f"{kind} {scheme}:" for kind, all_ in info.schemes.items() for scheme in all_
    )
    print(f"{info.owner} supplies {schemes}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
