"""Before anything runs: can Ray start here, and who answers at an address."""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import ray
from ray._private import services
from ray._raylet import AuthenticationMode, get_authentication_mode  # type: ignore[attr-defined]

import harness
from harness.execution.ray_worker import WORKING_DIRECTORY
from harness.files import check_room, writing
from harness.spec import UserError

PRIVATE = "started by harness run"  # a resource that marks a Ray of our own
RAY_ROOM = 20_000_000  # bytes that Ray needs for its logs and sockets
ANSWER = 5  # seconds within which a Ray cluster must answer
START = 10  # seconds within which a node is there after its cluster answers


def ray_folder() -> Path:
    """Where a Ray of our own keeps its logs and sockets: the folder ray/ in this one."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")


def check_ray_folder() -> None:
    """A UserError if Ray could not write its files: it would fail after a minute, with many lines."""
    folder = ray_folder()
    with writing(f"Ray's files to {folder} (set RAY_TMPDIR to a folder with room)"):
        # Ray makes its own folder, with permissions for every user of the machine
        check_room(folder / "ray" if (folder / "ray").is_dir() else folder, RAY_ROOM)


def check_address(address: str) -> None:
    """A UserError unless a Ray cluster answers there that takes our token: Ray itself would try for minutes."""
    resolved = latest_cluster() if address == "auto" else address
    host, _, port = resolved.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise UserError(f"--address {address}: must be auto or HOST:PORT, e.g. head:6379")
    place = address if resolved == address else f"{address} ({resolved}, of the last `ray start` here)"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray cluster at {place}: {error}") from None
    if os.environ.get("RAY_USE_TLS") == "1":
        return  # a question in plain text would not be answered
    answer = ask(resolved)
    if answer is grpc.StatusCode.UNAUTHENTICATED:
        check_token(place, resolved, found=address == "auto")
    elif answer is not grpc.StatusCode.OK:
        raise UserError(f"no Ray cluster at {place}: something other than Ray answers there, or nothing in {ANSWER} s")


def check_node(address: str) -> None:
    """A UserError unless a node of Ray runs on this machine: Ray itself would look for one for a minute, and say that
    it has found no node information."""
    deadline = time.monotonic() + START
    while not services.find_node_ids():
        if time.monotonic() > deadline:
            raise UserError(
                f"--address {address}: this machine is no node of the cluster; start the command on one of its nodes, "
                f"or make this one a node that runs no trials: ray start --address={address} --num-cpus=0"
            )
        time.sleep(0.5)


def check_private(address: str, say: Callable[[str], None]) -> None:
    """A UserError if `auto` has led to the Ray that another `harness run` started for itself: it ends with that run,
    whose trials would be waited for. Who names its HOST:PORT is told so."""
    private = any(node["Resources"].get(PRIVATE) for node in ray.nodes() if node["Alive"])
    if private and address == "auto":
        raise UserError(
            "--address auto: the Ray on this machine is one that another harness run started for itself; leave "
            "--address out to start another, or start a cluster: ray start --head"
        )
    say(f"joined the Ray cluster at {ray.get_runtime_context().gcs_address}")
    if private:
        say("another harness run started it for itself: it ends with that run, whose trials come first")


@contextlib.contextmanager
def own_folder_first() -> Iterator[None]:
    """Connect to Ray from the folder of our packages: Ray puts the working directory first on the import path of
    workers, and a user's own may have a folder losses/ or harness/. Workers return to it when they have imported
    ours."""
    working = os.getcwd()
    os.environ[WORKING_DIRECTORY] = working
    os.chdir(Path(harness.__file__).parent.parent)
    try:
        yield
    finally:
        os.chdir(working)


def latest_cluster() -> str:
    """The address that `auto` stands for: of a Ray that runs on this machine, else of the last `ray start` here."""
    try:
        return str(services.get_ray_address_from_environment("auto", None))
    except ConnectionError:
        raise UserError("no Ray cluster at auto: none was started on this machine; name its HOST:PORT") from None


def ask(address: str, token: str = "") -> grpc.StatusCode:
    """How a Ray cluster answers a question that each of its versions knows."""
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:  # as Ray connects
        question = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")
        try:
            question(b"", timeout=ANSWER, metadata=[("authorization", f"Bearer {token}")] if token else [])
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def check_token(place: str, address: str, *, found: bool) -> None:
    """A UserError unless we have the token of a cluster that asks for one. Ray looks for it in the same places. Its
    mode may be left out only where Ray `found` the cluster itself."""
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    token = os.environ.get("RAY_AUTH_TOKEN") or ""
    with contextlib.suppress(OSError):
        token = token or file.read_text().strip()
    mode = os.environ.get("RAY_AUTH_MODE") or ("token" if found else "")
    if mode != "token":
        raise UserError(f"the Ray cluster at {place} asks for a token: set RAY_AUTH_MODE=token")
    if not token:
        raise UserError(f"the Ray cluster at {place} asks for a token: copy ~/.ray/auth_token from its head to {file}")
    if ask(address, token) is not grpc.StatusCode.OK:
        where = "RAY_AUTH_TOKEN" if os.environ.get("RAY_AUTH_TOKEN") else file
        raise UserError(
            f"the Ray cluster at {place} refuses the token of {where}: copy ~/.ray/auth_token from its head"
        )


def dashboard_line(url: str) -> str:
    """Where the dashboard of the joined Ray is and, if it asks for a token, which command prints that."""
    asks = get_authentication_mode() == AuthenticationMode.TOKEN
    return f"Ray dashboard: http://{url}{'  (it asks for a token: ray get-auth-token)' if asks else ''}"
