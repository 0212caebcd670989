"""Deaths of processes count, deaths of nodes do not; Ray itself is made up."""

import pytest

from harness.execution import ray_deaths
from harness.execution.ray_deaths import Deaths


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The nodes that Ray shows as alive."""
    nodes = {"a", "b"}
    monkeypatch.setattr(ray_deaths, "alive_nodes", lambda: frozenset(nodes))
    monkeypatch.setattr(ray_deaths, "place_of", lambda id: {"a1": "a", "a2": "a"}.get(id, id))
    monkeypatch.setattr(ray_deaths, "PAUSE", 0.0)
    return nodes


def test_a_death_counts_if_its_node_is_still_alive_later(alive: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = Deaths()
    deaths.add("trial", "a", "killed")
    assert deaths.decide() == []
    assert (deaths.counted["trial"], deaths.possible("trial")) == (0, 1)
    monkeypatch.setattr(ray_deaths, "VERDICT", 0.0)
    assert [death.story for death in deaths.decide()] == ["killed"]
    assert (deaths.counted["trial"], deaths.possible("trial")) == (1, 1)


def test_a_death_with_its_node_does_not_count(alive: set[str]) -> None:
    deaths = Deaths()
    deaths.add("trial", "a", "")
    alive.discard("b")
    assert deaths.decide() == []  # another node
    alive.discard("a")
    assert len(deaths.decide()) == 1
    assert deaths.possible("trial") == 0


def test_a_death_before_the_first_report_does_not_count_if_any_node_went(alive: set[str]) -> None:
    deaths = Deaths()
    alive.discard("b")
    deaths.add("first", None, "")
    deaths.add("second", "a", "")
    assert [death.name for death in deaths.decide()] == ["first"]
    assert deaths.possible("first") == 0
    assert deaths.possible("second") == 1


def test_a_machine_that_keeps_losing_its_trials_is_named(alive: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node goes away and comes back under another id, then a process dies there alone; elsewhere two trials die."""
    lines: list[str] = []
    deaths = Deaths(lines.append)
    for node in ("a", "a1"):
        alive.add(node)
        deaths.decide()
        deaths.add("first", node, "")
        deaths.add("second", node, "")  # lost at once
        alive.discard(node)
        deaths.decide()
    alive.add("a2")
    monkeypatch.setattr(ray_deaths, "VERDICT", 0.0)
    for name in ("first", "second"):
        deaths.add(name, "b", "")
    deaths.decide()
    assert lines == []
    deaths.add("third", "a2", "")
    deaths.decide()
    assert lines == ["a has lost its trials 3 times; if that goes on, stop Ray there"]


def test_a_trial_that_dies_again_and_again_does_not_name_its_node(
    alive: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    deaths = Deaths(lines.append)
    monkeypatch.setattr(ray_deaths, "VERDICT", 0.0)
    for _ in range(5):
        deaths.add("trial", "a", "")
        deaths.decide()
    assert deaths.counted["trial"] == 5
    assert lines == []
