"""How often the process of each trial died. A node that goes away, as spot nodes do, is no failure of its trials."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import ray

VERDICT = 30.0  # seconds after which Ray has noticed that a node died
PAUSE = 1.0  # seconds between two looks at the nodes
OFTEN = 3  # times that a node has lost trials, after which it is named


@dataclass(frozen=True)
class Death:
    """The end of a trial's process. What Ray raises does not tell whether its node went away too."""

    name: str  # of the trial
    nodes: frozenset[str]  # ids: of the node where it ran, or of all if it died before it could say
    time: float
    story: str


class Deaths:
    """Deaths of processes, by the names of their trials. One counts if its node is still alive some time later.

    A machine on which trials die again and again is named. The node that comes back on it has another id.
    """

    def __init__(self, say: Callable[[str], None] = lambda line: None) -> None:
        self.say = say
        self.counted: Counter[str] = Counter()
        self.losses: dict[str, set[str]] = defaultdict(set)  # machine -> ids of nodes and names of trials that died
        self.undecided: list[Death] = []
        self.alive = alive_nodes()
        self.looked = 0.0

    def add(self, name: str, node: str | None, story: str) -> None:
        nodes = frozenset({node}) if node else self.alive
        self.alive = alive_nodes()
        self.undecided.append(Death(name, nodes, time.monotonic(), story))

    def possible(self, name: str) -> int:
        """At most so many deaths count."""
        return self.counted[name] + sum(death.name == name for death in self.undecided)

    def decide(self) -> list[Death]:
        """The deaths of which it is known now whether they count."""
        now = time.monotonic()
        if not self.undecided or now - self.looked < PAUSE:
            return []
        self.looked, self.alive = now, alive_nodes()
        decided = []
        for death in list(self.undecided):
            node_lives = death.nodes <= self.alive
            if not node_lives or now - death.time >= VERDICT:
                self.undecided.remove(death)
                self.counted[death.name] += node_lives
                self.name(death, node_lives=node_lives)
                decided.append(death)
        return decided

    def name(self, death: Death, *, node_lives: bool) -> None:
        """Name the machine of a death if it loses trials often. Those of a node that goes away are lost at once, and a
        trial that dies wherever it runs is not the node's fault."""
        if len(death.nodes) > 1:
            return
        (node,) = death.nodes
        place = place_of(node)
        losses = self.losses[place]
        before = len(losses)
        losses.add(death.name if node_lives else node)
        if len(losses) > before and len(losses) % OFTEN == 0:
            self.say(f"{place} has lost its trials {len(losses)} times; if that goes on, stop Ray there")


def alive_nodes() -> frozenset[str]:
    """The ids of the nodes that Ray counts as alive."""
    return frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"])


def place_of(id: str) -> str:
    """The machine of a node that is alive or has died, by its name and address."""
    for node in ray.nodes():
        if node["NodeID"] == id:
            return f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
    return f"node {id}"
