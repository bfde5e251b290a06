"""The transition table: the code takes no other way, and the documentation shows this one."""

from pathlib import Path

import pytest

from odradek.group.classic import TRANSITIONS, ClassicGroup, Event, State, diagram

PAGE = Path(__file__).parents[2] / "docs/reference/groups.md"


def test_the_documented_diagram_is_drawn_from_the_table():
    assert f"```mermaid\n{diagram()}```\n" in PAGE.read_text(encoding="utf-8")


def test_no_event_leads_two_ways():
    ways = [(source, event) for source, event, _ in TRANSITIONS]
    assert len(ways) == len(set(ways))


def test_every_state_can_be_left_but_dead_and_every_event_has_its_place():
    assert {source for source, _, _ in TRANSITIONS} == set(State) - {State.DEAD}
    assert {event for _, event, _ in TRANSITIONS} == set(Event)


def test_what_kafka_forbids_is_not_in_the_table():
    """Kafka's ClassicGroupState, by its sets of valid previous states."""
    before: dict[State, set[State]] = {}
    for source, _, target in TRANSITIONS:
        before.setdefault(target, set()).add(source)
    assert before == {
        State.EMPTY: {State.PREPARING_REBALANCE},
        State.PREPARING_REBALANCE: {State.STABLE, State.COMPLETING_REBALANCE, State.EMPTY},
        State.COMPLETING_REBALANCE: {State.PREPARING_REBALANCE},
        State.STABLE: {State.COMPLETING_REBALANCE},
        State.DEAD: set(State) - {State.DEAD},
    }


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_a_transition_that_is_not_in_the_table_raises(state, event):
    group = ClassicGroup("g", 0)
    group.state = state
    targets = [target for s, e, target in TRANSITIONS if (s, e) == (state, event)]
    if targets:
        group.step(event, 5)
        assert ([group.state], group.state_timestamp_ms) == (targets, 5)
    else:
        with pytest.raises(RuntimeError, match="group g"):
            group.step(event, 5)
        assert (group.state, group.state_timestamp_ms) == (state, 0)
