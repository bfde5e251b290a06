"""The coordinator's conformance kit finds what it is there to find."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from odradek.contracts import coordinator as contract
from odradek.contracts.coordinator import ABSENT, CoordinatorError, Put
from odradek.contracts.election import elect
from odradek.memory.coordinator import open_memory_coordinator
from odradek.testing.coordinator import CoordinatorConformance, CoordinatorHarness, Trait


def _sibling(name: str) -> ModuleType:
    """Import a module of this folder, which is no package (`--import-mode=importlib`)."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


broken = _sibling("broken_coordinators")

KIT = {
    name: test
    for name, test in inspect.getmembers(CoordinatorConformance, inspect.isfunction)
    if name.startswith("test_")
}
PROMISES = re.findall(r"^\* \*\*(C\d+) ", contract.__doc__ or "", re.MULTILINE)


def cited(test_name: str) -> str:
    """Return the promise that a test of the kit cites."""
    found = re.match(r"(C\d+): ", KIT[test_name].__doc__ or "")
    assert found is not None, f"{test_name} cites no promise"
    return found[1]


FOUND_OUT = (
    AssertionError,
    CoordinatorError,
    ValueError,
    trio.TooSlowError,
    pytest.fail.Exception,
    trio.Cancelled,
)
"""How a test of the kit fails: by its own verdict, or by what the coordinator raised at it."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Take exception groups apart."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


FOUND_BY = [
    (broken.ReadsBadKeys, "test_bad_keys_and_values_are_refused"),
    (broken.RefusesLongKeys, "test_every_good_key_and_value_is_kept"),
    (broken.ReadsFromALaggingReplica, "test_get_sees_what_any_client_was_told_is_written"),
    (broken.ListsByPrefix, "test_list_gives_one_directory"),
    (broken.PutReturnsThePreviousVersion, "test_put_creates_and_overwrites"),
    (broken.IgnoresVersions, "test_version_is_a_compare_and_set_token"),
    (broken.NumbersEachLifeAnew, "test_revision_grows_with_every_write"),
    (broken.CreatedChangesWithEachWrite, "test_created_changes_exactly_when_re_created"),
    (broken.SkipsDeletes, "test_txn_applies_all_of_its_operations"),
    (broken.AppliesOneByOne, "test_txn_that_fails_applies_nothing"),
    (broken.CreatesOverWhatIsThere, "test_each_operation_has_its_expectation"),
    (broken.RefusesLargeTransactions, "test_txn_within_the_limits_is_applied"),
    (broken.HasNoLimits, "test_txn_beyond_the_limits_is_refused"),
    (broken.ChecksAndThenActs, "test_one_of_racing_transactions_wins"),
    (broken.BeginsWithoutASnapshot, "test_snapshot_holds_what_was_acknowledged"),
    (broken.NeverTellsDeletions, "test_changes_of_the_directory_are_told"),
    (broken.TellsOldStatesAgain, "test_watch_never_goes_back"),
    (broken.LastWatchTakesAll, "test_changes_in_one_directory_reach_every_watch"),
    (broken.QueuesEveryChange, "test_late_reader_is_told_the_newest_state"),
    (broken.ForgetsWhatHappenedWhileCutOff, "test_cut_off_watch_catches_up"),
    (broken.WatchEndsWithItsConnection, "test_watch_outlives_a_restart"),
    (broken.OverwritingDisowns, "test_ephemeral_entry_ends_with_its_session"),
    (broken.TakesForeignSessions, "test_session_serves_one_coordinator"),
    (broken.TakesAnyTtl, "test_ttl_is_a_number_above_zero"),
    (broken.LeavingDoesNotEndTheSession, "test_session_that_was_left_is_lost"),
    (broken.DeadSessionsRise, "test_expired_session_never_comes_back"),
    (broken.BelievesWhatItWasToldLast, "test_cut_off_session_ends_by_its_own_clock"),
    (broken.BelievesWhatItWasToldLast, "test_client_knows_first_that_its_session_ended"),
    (broken.NeverRenews, "test_session_is_renewed"),
    (broken.ForgetsOnRestart, "test_acknowledged_writes_survive_a_restart"),
    (broken.EphemeralsArePersistent, "test_entries_of_ended_sessions_stay_gone"),
    (broken.SendsQueuedWritesLate, "test_definite_error_leaves_nothing"),
    (broken.AppliesOneByOne, "test_cancelled_txn_is_whole_or_not_at_all"),
    (broken.CancelledReaderLosesAChange, "test_cancelled_reading_loses_no_change"),
    (broken.CancellationLeavesTheSession, "test_cancelled_session_and_watch_leave_nothing"),
    (broken.ServesWhenClosed, "test_closed_coordinator_is_unavailable"),
    (broken.LeavingDoesNotEndTheSession, "test_leader_is_followed_when_its_session_ends"),
    (broken.CreatesOverWhatIsThere, "test_one_of_many_candidates_leads"),
    (broken.WholeTxnIsEphemeral, "test_epoch_grows_with_each_leadership"),
    (broken.IgnoresChecks, "test_fence_fails_once_there_is_a_later_leader"),
]


@pytest.mark.parametrize(
    ("plugin", "test_name"),
    [pytest.param(*row, id=f"{cited(row[1])}-{row[0].__name__}") for row in FOUND_BY],
)
async def test_kit_finds_the_broken_coordinator(plugin: Any, test_name: str) -> None:
    with pytest.raises(BaseException) as found:  # noqa: PT011  # looked at below
        await KIT[test_name](CoordinatorConformance(), broken.KitHarness(plugin, 0.3))
    reasons = list(leaves(found.value))
    assert all(isinstance(reason, FOUND_OUT) for reason in reasons), (
        f"the broken coordinator fell over instead of being found out: {reasons}"
    )


@pytest.mark.parametrize("test_name", KIT)
async def test_kit_is_content_with_a_faithful_coordinator(test_name: str) -> None:
    await KIT[test_name](CoordinatorConformance(), broken.KitHarness(broken.Faithful))


def test_every_promise_is_cited_by_a_test_of_the_kit() -> None:
    assert [f"C{number}" for number in range(1, len(PROMISES) + 1)] == PROMISES
    assert {cited(name) for name in KIT} == set(PROMISES)


def test_every_test_of_the_kit_fails_for_some_broken_coordinator() -> None:
    assert {name for _, name in FOUND_BY} == set(KIT)


@pytest.mark.parametrize("trait", Trait)
def test_missing_trait_is_a_skip_that_says_what_is_missed(trait: Trait) -> None:
    class Bare(broken.KitHarness):  # type: ignore[name-defined,misc]  # imported by path
        traits: frozenset[Trait] = frozenset()

    harness: CoordinatorHarness = Bare(broken.Faithful)
    with pytest.raises(pytest.skip.Exception, match=re.escape(trait.value)):
        harness.need(trait)


PAGE = Path(__file__).parents[2] / "docs/reference/coordinator.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_every_promise_is_listed_in_the_reference() -> None:
    assert re.findall(r"^\| (C\d+) \|", PAGE.read_text(), re.MULTILINE) == PROMISES


async def test_leader_in_the_reference_leads() -> None:
    (snippet,) = [code for code in SNIPPETS if "leader.fence" in code]
    names: dict[str, Any] = {"elect": elect, "ABSENT": ABSENT, "Put": Put}
    exec("async def lead(coordinator):\n" + textwrap.indent(snippet, "    "), names)
    async with open_memory_coordinator() as coordinator, trio.open_nursery() as nursery:
        async with coordinator.watch("cluster") as watch:
            nursery.start_soon(names["lead"], coordinator)
            assert (await anext(watch)).key == "cluster/settings"
        nursery.cancel_scope.cancel()


def test_plugin_test_in_the_reference_runs_without_any_configuration(tmp_path: Path) -> None:
    (snippet,) = [code for code in SNIPPETS if "CoordinatorConformance" in code]
    assert len(snippet.splitlines()) < 30
    (tmp_path / "test_my_coordinator.py").write_text(snippet)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout
    assert re.search(r"^\d\d passed, \d skipped", run.stdout, re.MULTILINE), run.stdout
    assert "no Trait.DURABLE: not declared that the state survives `restart`" in run.stdout
