"""Storage in files keeps the storage contract, at every durability."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_file_harness import FileHarness

from odradek.testing.storage import StorageConformance, StorageHarness
from odradek_storage_file import FileStorageSettings


class TestFileStorageAck(StorageConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> StorageHarness:
        return FileHarness(tmp_path, FileStorageSettings(durability="ack"))


class TestFileStorageInterval(StorageConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> StorageHarness:
        settings = FileStorageSettings(durability="interval", interval_ms=5)
        return FileHarness(tmp_path, settings)


class TestFileStorageNone(StorageConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> StorageHarness:
        return FileHarness(tmp_path, FileStorageSettings(durability="none"))


class TestFileStorageWithFewDescriptors(StorageConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> StorageHarness:
        return FileHarness(tmp_path, FileStorageSettings(max_open_files=1, recovery_bytes=4096))
