"""Loading: from nothing, a file, options; every mistake named with its place."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from odradek.config import (
    ConfigError,
    Limits,
    config_from_options,
    config_from_table,
    load_config,
    setting,
)

EXAMPLE = """
[broker]
id = 7
rack = "a"
[[listeners]]
url = "tcp://0.0.0.0:9092"
advertised = "broker1.example:9092"
backlog = 5
[storage]
url = "s3://bucket/prefix"
flush_interval_ms = 250
[coordinator]
url = "etcd://10.0.0.1:2379,10.0.0.2:2379"
[limits]
connections_max = 20
[topics]
retention.ms = 1000
"""


@pytest.fixture(autouse=True)
def data_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def problems_of(table: dict[str, object]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        config_from_table(table, source="odradek.toml")
    return caught.value.problems


def test_nothing_at_all_is_a_broker_for_this_machine(data_home: Path) -> None:
    config = config_from_options()
    assert [listener.url for listener in config.listeners] == ["tcp://127.0.0.1:9092"]
    assert config.storage.url == f"file://{data_home}/odradek"
    assert config.coordinator.url == f"embedded://{data_home}/odradek/coordinator"
    assert config.broker.id == 1
    assert config.limits == Limits()
    assert config.warnings == ()


def test_file_sets_every_section(tmp_path: Path) -> None:
    path = tmp_path / "odradek.toml"
    path.write_text(EXAMPLE)
    config = load_config(path)
    assert (config.broker.id, config.broker.rack) == (7, "a")
    assert config.listeners[0].advertised_address == ("broker1.example", 9092)
    assert config.listeners[0].options == {"backlog": 5}
    assert config.storage.scheme == "s3"
    assert config.storage.options == {"flush_interval_ms": 250}
    assert config.coordinator.url.startswith("etcd://")
    assert config.limits.connections_max == 20
    assert config.topics.retention_ms == 1000


def test_options_go_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "odradek.toml"
    path.write_text(EXAMPLE)
    config = config_from_options(
        file=path,
        listen=["tcp://127.0.0.1:1"],
        advertised=["a:1"],
        storage="s3://other",
        coordinator="embedded:///here",
        overrides=["broker.id=9", "broker.rack=b", "limits.wait_max_ms = 5"],
    )
    assert (config.broker.id, config.broker.rack) == (9, "b")
    assert [listener.url for listener in config.listeners] == ["tcp://127.0.0.1:1"]
    assert config.listeners[0].options == {}
    assert config.storage.url == "s3://other"
    assert config.storage.options == {"flush_interval_ms": 250}
    assert config.coordinator.url == "embedded:///here"
    assert config.limits.wait_max_ms == 5


def test_another_storage_drops_the_settings_of_the_files_storage(tmp_path: Path) -> None:
    path = tmp_path / "odradek.toml"
    path.write_text(EXAMPLE)
    config = config_from_options(file=path, storage="file:///logs")
    assert config.storage.options == {}


def test_overrides_may_be_a_mapping() -> None:
    config = config_from_options(overrides={"topics.retention.ms": 5, "broker.rack": "7"})
    assert config.topics.retention_ms == 5
    assert config.broker.rack == "7"


@pytest.mark.parametrize(
    ("storage", "coordinator"),
    [
        ("file:///logs", "embedded:///logs/coordinator"),
        ("file:///logs/", "embedded:///logs/coordinator"),
        ("memory:", "memory:"),
    ],
)
def test_coordinator_left_out_lies_where_the_logs_do(storage: str, coordinator: str) -> None:
    assert config_from_options(storage=storage).coordinator.url == coordinator


def test_embedded_coordinator_beside_a_remote_storage_is_the_users(data_home: Path) -> None:
    config = config_from_options(storage="s3://bucket", coordinator="embedded:")
    assert config.coordinator.url == f"embedded://{data_home}/odradek/coordinator"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"brokers": {}}, "odradek.toml: unknown section 'brokers'; did you mean \"broker\"?"),
        ({"broker": 1}, "odradek.toml: broker is a section: write [broker] and its keys below"),
        ({"broker": {"idd": 1}}, "odradek.toml: [broker]: unknown key 'idd'; did you mean \"id\"?"),
        ({"storage": {"url": 1}}, "odradek.toml: [storage]: url: expected a string, found 1"),
        ({"storage": {"url": "/x"}}, "odradek.toml: [storage]: url: '/x' is not a URL"),
        ({"listeners": {}}, "odradek.toml: listeners are a list of sections: write [[listeners]]"),
        ({"listeners": []}, "odradek.toml: there is no listener"),
        ({"listeners": [{}]}, "odradek.toml: [[listeners]]: url is missing"),
        (
            {"listeners": [{"url": "tcp://127.0.0.1:1", "advertised": "here"}]},
            "odradek.toml: [[listeners]]: advertised: 'here' is not \"host:port\"",
        ),
        (
            {"listeners": [{"url": "tcp://127.0.0.1:99999"}]},
            "odradek.toml: [[listeners]]: url: 'tcp://127.0.0.1:99999' is not an address: Port out",
        ),
        (
            {"listeners": [{"url": "tcp://127.0.0.1"}]},
            "odradek.toml: [[listeners]]: url: 'tcp://127.0.0.1' is not an address: write tcp://",
        ),
        (
            {"listeners": [{"url": "tcp://0.0.0.0:9092"}]},
            "odradek.toml: [[listeners]]: tcp://0.0.0.0:9092 listens on every address",
        ),
        (
            {
                "listeners": [
                    {"url": "tcp://127.0.0.1:1", "name": "tcp"},
                    {"url": "tcp://127.0.0.1:2", "name": "tcp"},
                ]
            },
            "odradek.toml: [[listeners]]: two listeners are called 'tcp'",
        ),
    ],
)
def test_mistake_is_named_with_its_place(table: dict[str, object], problem: str) -> None:
    (line,) = problems_of(table)
    assert line.startswith(problem)


def test_listeners_without_a_name_get_one_each() -> None:
    config = config_from_options(listen=["tcp://127.0.0.1:1", "tcp://[::1]:2", "memory://a"])
    assert [each.name for each in config.listeners] == ["tcp", "tcp-2", "memory"]
    given = [{"url": "tcp://127.0.0.1:1"}, {"url": "tcp://127.0.0.1:2", "name": "tcp"}]
    config = config_from_table({"listeners": given})
    assert [each.name for each in config.listeners] == ["tcp-2", "tcp"]


def test_mistakes_of_all_sections_come_together() -> None:
    table = {"broker": {"id": "x"}, "limits": {"y": 1}, "listeners": [{}, {}], "storage": 3}
    assert len(problems_of(table)) == 5


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"[broker", "is not TOML"), (b"a = '\xff'", "is not UTF-8"), (None, "cannot be read")],
)
def test_unreadable_file_is_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "odradek.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        load_config(path)
    assert caught.value.problems[0].startswith(str(path))


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("broker.id", "broker.id: a setting is written section.key=value"),
        ("id=1", "id: a setting is section.key, with the section one of broker, storage"),
        ("listeners.url=x", "listeners.url: a setting is section.key"),
        ("broker.id=x", 'the options: [broker]: id: expected a whole number, found the string "x"'),
    ],
)
def test_wrong_override_is_named(override: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_options(overrides=[override])
    assert caught.value.problems[0].startswith(problem)


def test_more_advertised_than_listeners_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="--advertised is given more often than --listen"):
        config_from_options(advertised=["a:1"])


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("tcp://127.0.0.1:1", False),
        ("tcp://localhost:1", False),
        ("tcp://[::1]:1", False),
        ("memory://a", False),
        ("tcp://192.168.1.1:1", True),
        ("tcp://broker1.example:1", True),
        ("tcp://[::]:1", True),
    ],
)
def test_listener_for_others_gives_a_warning(url: str, warns: bool) -> None:
    config = config_from_options(listen=[url], advertised=["a:1"])
    assert len(config.warnings) == warns


def test_plugins_settings_are_structured_by_its_class_with_the_place() -> None:
    @attrs.frozen(kw_only=True)
    class Settings:
        flush_interval_ms: int = setting(100, doc="How often.")

    good = config_from_table({"storage": {"url": "x:", "flush_interval_ms": 5}})
    assert good.storage.settings(Settings).flush_interval_ms == 5
    bad = config_from_table({"storage": {"url": "x:", "flush_ms": 5}}, source="o.toml")
    with pytest.raises(ConfigError, match=r"o.toml: \[storage\]: unknown key 'flush_ms'; did you"):
        bad.storage.settings(Settings)


def test_options_of_a_plugin_are_not_shown() -> None:
    config = config_from_table({"storage": {"url": "x:", "password": "hunter2"}})
    assert "hunter2" not in repr(config)


def test_settings_in_a_url_are_settings_of_its_section() -> None:
    config = config_from_options(
        listen=["tcp://127.0.0.1:0?backlog=7"],
        storage="file:///data/a%20b?durability=none&interval_ms=5",
    )
    assert config.storage.url == "file:///data/a%20b"
    assert config.storage.options == {"durability": "none", "interval_ms": 5}
    (listener,) = config.listeners
    assert listener.url == "tcp://127.0.0.1:0"
    assert listener.options == {"backlog": 7}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///data?durability", "key=value"),
        ("file:///data?durability=ack&durability=none", "each once"),
        ("file:///data#durability=none", "%23"),
    ],
)
def test_a_url_with_something_else_behind_it_is_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_from_options(storage=url)


def test_a_setting_given_in_the_url_and_beside_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="in the URL, too"):
        config_from_options(
            storage="file:///data?durability=ack", overrides=["storage.durability=none"]
        )
