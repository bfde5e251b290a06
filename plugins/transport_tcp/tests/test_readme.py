"""The README lists every setting with its default and Kafka's name."""

from pathlib import Path

from odradek.config import settings_of
from odradek_transport_tcp import TcpSettings

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


def test_readme_lists_the_settings_as_they_are() -> None:
    rows = {
        tuple(cell.strip(" `") for cell in line.split("|")[1:4])
        for line in README.partition("## Settings")[2].partition("##")[0].splitlines()
        if line.startswith("| `")
    }
    assert rows == {
        (name, str(setting.default).lower(), setting.kafka or "")
        for name, setting in settings_of(TcpSettings).items()
    }
