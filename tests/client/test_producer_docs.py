"""The producer's page: every setting with its default, and programs that run."""

import re
import sys
from pathlib import Path

import pytest
import trio
from attrs import fields
from tests.client.conftest import run_broker

from odradek.client import ClientSettings, ProducerSettings

PAGE = Path(__file__).parents[2] / "docs/client/producer.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("heading", "settings"),
    [("Settings of the producer", ProducerSettings), ("Settings of the client", ClientSettings)],
)
def test_every_setting_is_on_the_page_with_its_default(heading: str, settings: type) -> None:
    _, _, section = TEXT.partition(f"## {heading}\n")
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \|", section.partition("\n## ")[0], re.MULTILINE)
    made = settings()
    defaults = {each.name: getattr(made, each.name) for each in fields(settings)}
    assert dict(rows) == {
        name: getattr(value, "name", str(value)) for name, value in defaults.items()
    }


@pytest.mark.parametrize("program", PROGRAMS)
async def test_programs_of_the_page_run(program: str) -> None:
    pytest.importorskip("odradek_transport_tcp")
    async with run_broker("tcp") as broker:
        (url,) = broker.urls.values()
        code = program.replace("127.0.0.1:9092", url.removeprefix("tcp://"))
        with trio.fail_after(60):
            done = await trio.run_process([sys.executable, "-c", code], capture_stdout=True)
    assert b" 0" in done.stdout
