"""What the nodes of a cluster have, what its autoscaler has pending, and what trials wait for where no node has it."""

import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray import tune
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply  # type: ignore[attr-defined]
from ray.exceptions import RayError
from ray.experimental.internal_kv import _internal_kv_get, internal_kv_get_gcs_client
from ray.tune.experiment import Trial as TuneTrial
from ray.util import placement_group_table

from harness.spec import UserError, printable

PAUSE = 2.0  # seconds between two looks at the nodes
FIRST_REPORT = 15.0  # seconds within which the autoscaler of a cluster that was just started has reported
QUEUE = 30.0  # seconds without a place on nodes that have room, after which others use them: Ray knows then who died
PATIENCE = 60.0  # seconds without anything pending, after which Ray starts nothing
ANSWER = 5.0  # seconds within which Ray must answer

NO_TYPE = re.compile(r"node_[0-9a-f]{56}")  # what the first autoscaler calls a node that it did not start: by its id

Resources = Mapping[str, float]


def alive(avoid: Collection[str] = ()) -> list[Resources]:
    """What each node has in all, free or not. `avoid`: ids of nodes that are left out."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in avoid]


def has_room(needed: Resources, avoid: Collection[str] = ()) -> bool:
    """Whether a node has as much."""
    return any(all(node.get(kind, 0) >= amount for kind, amount in needed.items()) for node in alive(avoid))


def in_words(resources: Resources) -> str:
    """1 CPU and 2 GPUs."""
    amounts = {kind: amount for kind, amount in resources.items() if amount}
    return " and ".join(f"{amount:g} {kind}{'' if amount == 1 else 's'}" for kind, amount in amounts.items())


@dataclass(frozen=True)
class Autoscaler:
    """What the autoscaler of a cluster has reported last."""

    pending: Mapping[str, int]  # type of node -> how many are being started
    infeasible: tuple[Resources, ...] = ()  # what it can start no node for: no type has it, or the maximum is reached
    failure: str = ""  # why a node could not be started

    @property
    def starting(self) -> str:
        return f"Ray is starting {', '.join(f'{n} x {type}' for type, n in sorted(self.pending.items()))}"

    def cannot_start(self, needed: Resources) -> bool:
        wanted = {kind: amount for kind, amount in needed.items() if amount}
        return not self.pending and wanted in self.infeasible


def autoscaler() -> Autoscaler | None:
    """None if the cluster has none, or if it has not reported yet. No call of Ray's says whether there is one."""
    reply = GetClusterStatusReply()
    reply.ParseFromString(internal_kv_get_gcs_client().get_cluster_status(timeout_s=ANSWER))
    if reply.HasField("autoscaling_state"):
        return second_version(reply)
    status = _internal_kv_get(DEBUG_AUTOSCALING_STATUS)
    return first_version(json.loads(status)) if status else None


def second_version(reply: Any) -> Autoscaler | None:
    """Where no autoscaler was configured, its monitor reports too, but nodes are of no type."""
    if not any(node.ray_node_type_name for node in reply.cluster_resource_state.node_states):
        return None
    state = reply.autoscaling_state
    pending = Counter[str](instance.ray_node_type_name for instance in state.pending_instances)
    for request in state.pending_instance_requests:
        pending[request.ray_node_type_name] += request.count
    infeasible = [bundles_of(gang) for gang in state.infeasible_gang_resource_requests]
    last = max(state.failed_instance_requests, key=lambda request: request.failed_ts, default=None)
    return Autoscaler(pending, tuple(infeasible), last.reason if last else "")


def bundles_of(gang: Any) -> Resources:
    """What a placement group with one bundle asks for."""
    requests = gang.bundle_selectors[0].resource_requests if gang.bundle_selectors else gang.requests
    return dict(requests[0].resources_bundle) if len(requests) == 1 else {}


def first_version(status: Mapping[str, Any]) -> Autoscaler | None:
    """It does not say what is infeasible. Where no autoscaler was configured, each node is of a type of its own."""
    report = status.get("autoscaler_report") or {}
    types = (report.get("node_type_mapping") or {}).values()
    if all(NO_TYPE.fullmatch(type) for type in types):
        return None
    pending = Counter[str](report["pending_launches"])
    pending.update(type for _, type, _ in report["pending_nodes"])
    refused = [
        information["category"]
        for type in report["node_availability_summary"]["node_availabilities"].values()
        if (information := type["unavailable_node_information"])
    ]
    return Autoscaler(pending, failure=", ".join(refused))


def is_starting_nodes() -> bool:
    """Whether nodes will come that the autoscaler is starting now."""
    with contextlib.suppress(RayError):
        scaler = autoscaler()
        return scaler is not None and bool(scaler.pending)
    return False


def has_autoscaler() -> bool:
    """Whether the cluster starts nodes by itself. One that was just started needs some seconds to say so."""
    deadline = time.monotonic() + FIRST_REPORT
    while autoscaler() is None:
        if time.monotonic() > deadline or _internal_kv_get(DEBUG_AUTOSCALING_STATUS):
            return False
        time.sleep(1)
    return True


def is_queued() -> bool:
    """Whether Ray has given this run no place for a trial: others use what it has asked for."""
    job = ray.get_runtime_context().get_job_id()  # the id of a placement group ends with its job's
    states = {group["state"] for id, group in placement_group_table().items() if id.endswith(job)}
    return "PENDING" in states and "CREATED" not in states


class Waiting(tune.Callback):
    """Tells what trials wait for while none runs, and no node that is fit has what one needs, or none has it free; ""
    when that is over."""

    def __init__(
        self, needed: Resources, tell: Callable[[str], None], unfit: Collection[str] = (), *, however_long: bool
    ) -> None:
        self.needed = needed
        self.unfit = unfit  # ids of nodes that trials avoid
        self.tell = tell
        self.however_long = however_long  # also for what Ray reports as infeasible
        self.looked = 0.0
        self.quiet_since: float | None = None  # nothing has been pending since then
        self.queued_since: float | None = None  # the nodes that have room are in use since then
        self.had_room = False  # at some time: Ray has nodes of this kind
        self.told = ""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks in order to resume; we do not resume from Tune

    def on_step_begin(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        now = time.monotonic()
        if now - self.looked < PAUSE:
            return
        self.looked = now
        with contextlib.suppress(RayError):
            room = has_room(self.needed, self.unfit)
            self.had_room |= room
            runs = any(trial.status == TuneTrial.RUNNING for trial in trials)
            if runs or room:
                self.quiet_since = None
            if runs or not room:
                self.queued_since = None
            if runs:
                self.say("")
            else:
                self.say(self.queue(now) if room else self.state(autoscaler(), now))

    def say(self, text: str) -> None:
        if text != self.told:
            self.told = text
            self.tell(text)

    def queue(self, now: float) -> str:
        """What is waited for where nodes have room; "" if this run has its place there."""
        if not is_queued():
            self.queued_since = None
            return ""
        if self.queued_since is None:
            self.queued_since = now
        if now - self.queued_since < QUEUE:
            return ""
        scaler = autoscaler()
        coming = f"; {scaler.starting}" if scaler is not None and scaler.pending else ""
        return f"waiting for a node with {in_words(self.needed)}: all that have as much are in use{coming}"

    def state(self, scaler: Autoscaler | None, now: float) -> str:
        """What is waited for; a UserError if it will never come."""
        what = f"waiting for a node with {in_words(self.needed)}"
        if scaler is None:
            return f"{what}: this cluster has no autoscaler, so start one there (ray start)"
        if scaler.pending:
            self.quiet_since = None
            return f"{what}: {scaler.starting}"
        if self.quiet_since is None:
            self.quiet_since = now
        if now - self.quiet_since < PATIENCE:
            return f"{what}: Ray has nothing pending for it yet"
        if scaler.cannot_start(self.needed) and not self.had_room and not self.however_long:
            raise UserError(
                f"{absence(self.needed)}; Ray reports that it can start none that has (no such node type, or the "
                "maximum is reached); --wait-for-nodes waits all the same"
            )
        failure = f"; the last start failed: {printable(scaler.failure)}" if scaler.failure else ""
        return f"{what}: Ray starts nothing for it (no such node type, or the maximum is reached){failure}"


def absence(needed: Resources) -> str:
    """No node has as many CPUs and GPUs as a trial gets."""
    options = f"--cpus-per-trial {needed['CPU']:g}, --gpus-per-trial {needed['GPU']:g}"
    sizes = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in alive())
    return f"{options}: no node has as many; the nodes have {sizes}"
