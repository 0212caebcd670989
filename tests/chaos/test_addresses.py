"""--address: what answers there, or does not, and whether it takes our token; in one line, within seconds."""

import http.server
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from ray._private import services

from harness.execution import ray_checks
from tests.conftest import Harness

RUN = ("run", "--losses", "triplet", "--dataset", "blobs", "--executor", "ray", "--address")
TOKEN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def quick(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second instead of five; no token, no cluster of this machine."""
    monkeypatch.setattr(ray_checks, "ANSWER", 1)
    monkeypatch.setattr(services, "find_gcs_addresses", set)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def refused(harness: Harness, address: str) -> str:
    said = harness(*RUN, address)
    assert said.code == 2
    assert said.err.startswith("harness: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.fixture
def http_server() -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def silent_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.fault("--address of an HTTP server", "one line, exit 2, within seconds")
def test_an_http_server_is_no_cluster(harness: Harness, http_server: str) -> None:
    assert f"no Ray cluster at {http_server}: something other than Ray answers there" in refused(harness, http_server)


@pytest.mark.fault("--address of a socket that says nothing", "one line, exit 2, within seconds")
def test_a_socket_that_says_nothing_is_no_cluster(harness: Harness, silent_server: str) -> None:
    assert "something other than Ray answers there, or nothing in 1 s" in refused(harness, silent_server)


@pytest.mark.fault(
    "--address nowhere, banana:, :6379, HOST:PORT with letters, ray://, a port above 65535; a host that does not exist",
    "one line that says what is allowed, or what is wrong, exit 2",
)
@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("nowhere", "--address nowhere: must be auto or HOST:PORT, e.g. head:6379"),
        ("banana:", "--address banana:: must be auto or HOST:PORT"),
        (":6379", "--address :6379: must be auto or HOST:PORT"),
        ("head:port", "--address head:port: must be auto or HOST:PORT"),
        ("ray://head:10001", "--address ray://head:10001: must be auto or HOST:PORT"),
        ("127.0.0.1:99999", "no Ray cluster at 127.0.0.1:99999: "),
        ("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1: "),
        ("no-such-host.invalid:6379", "no Ray cluster at no-such-host.invalid:6379: "),
    ],
)
def test_an_address_that_is_none_is_named(harness: Harness, address: str, complaint: str) -> None:
    err = refused(harness, address)
    assert complaint in err
    assert "invalid literal" not in err


@pytest.mark.fault("--address auto without a cluster", "one line, exit 2")
def test_auto_without_a_cluster(harness: Harness) -> None:
    assert "no Ray cluster at auto: none was started on this machine" in refused(harness, "auto")


@pytest.mark.fault(
    "--address auto, with the address of a cluster that is gone", "one line that names it, exit 2, at once"
)
@pytest.mark.parametrize("answers", [False, True], ids=["nobody answers", "something else answers"])
def test_auto_of_a_cluster_that_is_gone(harness: Harness, tmp_path: Path, silent_server: str, answers: bool) -> None:
    address = silent_server if answers else "127.0.0.1:1"
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(address)
    assert f"no Ray cluster at auto ({address}, of the last `ray start` here): " in refused(harness, "auto")


class Guarded(grpc.GenericRpcHandler):
    """Answers what a cluster with a token answers to the question that we ask."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        metadata = dict(handler_call_details.invocation_metadata)

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if metadata.get("authorization") != f"Bearer {TOKEN}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def guarded() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([Guarded()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.fault(
    "a cluster with a token, joined without RAY_AUTH_MODE, without a token, with a wrong one",
    "one line that says which, exit 2, within seconds",
)
def test_a_missing_or_wrong_token_is_called_that(
    harness: Harness, guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, file = f"the Ray cluster at {guarded}", tmp_path / ".ray" / "auth_token"
    assert f"{cluster} asks for a token: set RAY_AUTH_MODE=token\n" in refused(harness, guarded)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert f"{cluster} asks for a token: set RAY_AUTH_MODE=token\n" in refused(harness, guarded)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    missing = f"{cluster} asks for a token: copy ~/.ray/auth_token from its head to {file}\n"
    assert missing in refused(harness, guarded)
    file.parent.mkdir()
    file.write_text("wrong\n")
    assert f"{cluster} refuses the token of {file}: copy" in refused(harness, guarded)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    assert f"{cluster} refuses the token of RAY_AUTH_TOKEN: copy" in refused(harness, guarded)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    ray_checks.check_address(guarded)
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    file.write_text(f"{TOKEN}\n")
    ray_checks.check_address(guarded)


@pytest.mark.fault("a proxy in the environment, as on many clusters", "Ray's head is asked directly")
def test_a_cluster_is_not_asked_through_a_proxy(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    ray_checks.check_address(guarded)
