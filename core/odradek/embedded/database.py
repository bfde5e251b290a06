"""The SQLite file of the embedded coordinator; no trio here, everything blocks.

One directory holds ``coordinator.db`` (WAL mode, synchronous=FULL), ``coordinator.lock`` and
``coordinator.ballast``, which only takes up room until a write finds none. The persistent entries
lie in one table, each row with a CRC-32 of its contents, because SQLite has no page checksums of
its own: a flipped bit in a value would otherwise become cluster metadata.

Ephemeral entries are never written. `boot`, the upper bits of all revisions, is raised durably at
each opening.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from zlib import crc32

from odradek.contracts.coordinator import Entry, Unavailable, Uncertain, Version
from odradek.contracts.local import BOOT_SHIFT, LocalStore
from odradek.embedded.ballast import Ballast
from odradek.embedded.directory import LOCK_NAME, InUse, lock_directory, make_directory, sync
from odradek.embedded.wal import transactions_after_damage
from odradek.errors import OdradekError

__all__ = ["Damaged", "Database", "DiskFull", "WriteFailed"]

DATABASE_NAME: Final = "coordinator.db"
LOG_NAME: Final = DATABASE_NAME + "-wal"
APPLICATION_ID: Final = 0x4F445244
"""SQLite's `application_id`: the letters ODRD, which file(1) shows."""
FORMAT: Final = 1
"""SQLite's `user_version`; raised when an older version could not read the tables."""
MAX_BOOT: Final = 1 << 22  # keeps revisions within SQLite's 63 bits

_SCHEMA: Final = f"""
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL,
    created INTEGER NOT NULL, crc INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE boots (id INTEGER PRIMARY KEY CHECK (id = 0), boot INTEGER NOT NULL);
INSERT INTO boots VALUES (0, 0);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
PRAGMA journal_mode = WAL;
"""
"""Makes a database that nobody relies on before it has been synced and renamed into place."""
_UPSERT: Final = (
    "INSERT INTO entries (key, value, revision, created, crc) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = excluded.revision, "
    "created = excluded.created, crc = excluded.crc"
)


class Damaged(OdradekError):
    """The database is not one, was damaged, or is of a newer version.

    It was left as it is. The message says what was found.
    """


class DiskFull(Unavailable):
    """No room for this write; nothing of it was applied, and the database goes on."""


class WriteFailed(Uncertain):
    """A write failed in a way after which nobody knows what is on the disk."""


class Database(LocalStore):
    """An open database; `entries` and `boot` are as read when it was opened.

    Must not be used after a fork; the child's copy is inert and releases nothing of the parent's.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._ballast = Ballast(path.parent, 0)
        self.boot = 0
        self.entries: dict[str, Entry] = {}
        self._connection = connection
        self._lock = -1  # closed, until `open` is through

    @classmethod
    def open(cls, directory: Path, ballast_bytes: int = 0) -> Database:
        """Open the database in `directory`, creating both where absent; recovers by itself.

        `ballast_bytes`: how much room to set aside for writes on a full disk.

        Raises InUse, Damaged, and Unavailable where the operating system refuses or the disk is
        full. Nothing stays open after an error.
        """
        path = directory / DATABASE_NAME
        try:
            with ExitStack() as undo:
                make_directory(directory)
                lock = lock_directory(directory)
                undo.callback(os.close, lock)
                _check_files(path)
                if not path.exists():
                    _create(path)
                connection = sqlite3.connect(
                    path, timeout=0, isolation_level=None, check_same_thread=False
                )
                undo.callback(connection.close)
                database = cls(path, connection)
                database._ballast = Ballast(directory, ballast_bytes)
                database._prepare()
                database._ballast.set_aside()
                undo.pop_all()
        except OSError as error:
            raise Unavailable(f"cannot open {path}: {error}") from error
        except (TypeError, UnicodeError) as error:  # from reading what is not what was written
            raise Damaged(_damage(path, str(error))) from error
        except sqlite3.Error as error:
            raise _opening_error(path, error) from error
        database._lock = lock
        _open_databases.add(database)
        return database

    def write(self, changes: Mapping[str, Entry | None]) -> None:
        """See `LocalStore.write`; raises DiskFull and WriteFailed."""
        if self._lock < 0:
            raise WriteFailed(f"{self.path} was closed, or this process was forked")
        stored = [_row(entry) for entry in changes.values() if entry is not None]
        deleted = [(key,) for key, entry in changes.items() if entry is None]
        execute = self._connection.execute

        def write() -> None:
            execute("BEGIN IMMEDIATE")
            self._connection.executemany(_UPSERT, stored)
            self._connection.executemany("DELETE FROM entries WHERE key = ?", deleted)
            execute("COMMIT")

        try:
            self._with_ballast(write)
        except sqlite3.Error as error:
            if self._ran_full(error):
                raise DiskFull(f"no room on the disk of {self.path}") from error
            raise WriteFailed(f"writing {self.path} failed: {_name(error)}: {error}") from error
        if self._ballast.lacks:
            self._ballast.set_aside()

    def close(self) -> None:
        """Close the database and let go of the directory; idempotent."""
        if self._lock < 0:
            return
        lock, self._lock = self._lock, -1
        try:
            self._connection.close()
        finally:
            os.close(lock)

    def _prepare(self) -> None:
        execute = self._connection.execute
        # Exclusive before the first access: the wal-index is then in heap memory, there is no
        # shared-memory file, and no other process gets between us and the file.
        execute("PRAGMA locking_mode = EXCLUSIVE")
        (application_id,) = execute("PRAGMA application_id").fetchone()
        (user_version,) = execute("PRAGMA user_version").fetchone()
        if application_id != APPLICATION_ID:
            raise Damaged(f"{self.path} is not a database of Odradek's; it was left as it is")
        if user_version != FORMAT:
            raise Damaged(f"{self.path} has format {user_version}, this version reads {FORMAT}")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        (found,) = execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise Damaged(_damage(self.path, found))
        rows = execute("SELECT key, value, revision, created, crc FROM entries").fetchall()
        self.entries = {row[0]: _entry(self.path, row) for row in rows}
        newest = max((entry.revision for entry in self.entries.values()), default=0)
        ((boot,),) = execute("SELECT boot FROM boots").fetchall()
        if not newest >> BOOT_SHIFT <= boot < MAX_BOOT:
            raise Damaged(_damage(self.path, f"boot {boot}, but an entry of revision {newest}"))
        self._with_ballast(self._begin)
        self.boot = boot + 1

    def _begin(self) -> None:
        # What a crash left in the log must not be there when the next crash is looked into.
        self._empty_log()
        self._connection.execute("UPDATE boots SET boot = boot + 1")

    def _empty_log(self) -> None:
        """Bring what is in the log into the database, and give the log's room back."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _with_ballast(self, write: Callable[[], None]) -> None:
        """Call `write`, and once more with the ballast's room where the disk had none for it.

        Raises sqlite3.Error, as `write` does; a transaction may then be open.
        """
        try:
            write()
        except sqlite3.Error as error:
            if not self._ran_full(error) or not self._ballast.give():
                raise
            try:
                # Else each write would make the log longer by some pages, until it has some MiB
                # and the ballast is used up.
                self._empty_log()
                write()
            except sqlite3.Error as second:
                if self._ran_full(second):
                    self._empty_log()  # of the pages that there was room for
                raise
            finally:
                self._ballast.take_back()

    def _ran_full(self, error: sqlite3.Error) -> bool:
        """Whether there was no room, and nothing was left behind."""
        return _name(error) == "SQLITE_FULL" and self._roll_back()

    def _roll_back(self) -> bool:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    def _abandon_in_child(self) -> None:
        """Make this forked copy inert.

        SQLite must not close a connection that came through a fork: it would believe to be alone
        and delete the parent's WAL. So the copy is made immortal.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)  # a flock outlives its owner as long as a child has it open


_open_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _abandon_all_in_child() -> None:
    for database in tuple(_open_databases):
        database._abandon_in_child()


os.register_at_fork(after_in_child=_abandon_all_in_child)


def _check_files(path: Path) -> None:
    """Raise Damaged for what SQLite would take for a new database or for a crash."""
    log = path.with_name(LOG_NAME)
    log_bytes = log.read_bytes() if log.exists() else b""
    if not path.exists() and log_bytes:
        raise Damaged(_damage(path, f"it is missing, though {LOG_NAME} is there"))
    if path.exists() and path.stat().st_size == 0:
        raise Damaged(_damage(path, "it is empty"))
    lost = transactions_after_damage(log_bytes)
    if lost > 1:
        raise Damaged(_damage(path, f"a bad frame in {LOG_NAME} hides {lost} transactions"))


def _create(path: Path) -> None:
    """Put an empty database in place, whole or not at all."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    connection = sqlite3.connect(new, isolation_level=None)
    try:
        connection.executescript(_SCHEMA)
    finally:
        connection.close()
    sync(new)
    new.rename(path)
    sync(path.parent)


def _row(entry: Entry) -> tuple[str, bytes, int, int, int]:
    crc = _crc(entry.key, entry.value, entry.revision, entry.created)
    return (entry.key, entry.value, entry.revision, entry.created, crc)


def _crc(key: str, value: bytes, revision: int, created: int) -> int:
    return crc32(value, crc32(f"{key}\0{revision}\0{created}\0".encode()))


def _entry(path: Path, row: tuple[str, bytes, int, int, int]) -> Entry:
    key, value, revision, created, crc = row
    if not isinstance(value, bytes) or _crc(key, value, revision, created) != crc:
        raise Damaged(_damage(path, f"the entry {key!r} fails its CRC"))
    return Entry(key, value, Version(revision), revision, created)


def _damage(path: Path, what: str) -> str:
    return (
        f"{path} is damaged: {what}. It was left as it is: restore the whole directory from a "
        "backup, or move it away to start with an empty coordinator"
    )


def _name(error: sqlite3.Error) -> str:
    """Return SQLite's name of `error`; errors of the Python module itself have none."""
    return getattr(error, "sqlite_errorname", type(error).__name__)


def _opening_error(path: Path, error: sqlite3.Error) -> OdradekError:
    name = _name(error)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return InUse(f"{path} is open in another program, which does not hold {LOCK_NAME}")
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_ERROR", "SQLITE_SCHEMA")):
        return Damaged(_damage(path, f"{name}: {error}"))
    return Unavailable(f"cannot open {path}: {name}: {error}")
