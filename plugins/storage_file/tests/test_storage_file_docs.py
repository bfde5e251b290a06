"""The plugin's README says what is true of its settings."""

from __future__ import annotations

import re
from pathlib import Path

from odradek.config import settings_of
from odradek_storage_file import FileStorageSettings

README = Path(__file__).parent.parent / "README.md"


def test_readme_lists_every_setting_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", README.read_text(), re.MULTILINE)
    declared = settings_of(FileStorageSettings)
    assert [name for name, _ in rows] == list(declared)
    for name, default in rows:
        assert str(declared[name].default).lower() == default.strip("`").lower(), name
