"""A real S3 server on loopback: moto's, which counts requests, and on demand is slow or fails at random."""

import math
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import boto3
from moto import settings
from moto.moto_api._internal import moto_api_backend
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
BROKEN = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"
BUCKET = "bench"


class Quiet(WSGIRequestHandler):
    """Without a line on standard error for each request."""

    def log(self, *words: Any) -> None:
        pass


class S3:
    """moto's S3 in a thread of this process, on a free port of loopback."""

    def __init__(self) -> None:
        self.app = DomainDispatcherApplication(create_backend_app)
        self.server: BaseWSGIServer = make_server("127.0.0.1", 0, self.answer, threaded=True, request_handler=Quiet)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.requests: Counter[tuple[str, str]] = Counter()  # by method and path: /bench/run/plans/1f.json
        self.failing = 0.0  # the share of requests that fail
        self.last: int | None = None  # the number of requests after which all fail
        self.delay = 0.0  # seconds before each answer
        self.rng = random.Random(0)
        threading.Thread(target=self.server.serve_forever, name="s3", daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find this server and to be let in."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def client(self) -> Any:
        options = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.url, **options)

    def answer(self, environ: dict[str, Any], start_response: Callable) -> Iterable[bytes]:
        self.requests[environ["REQUEST_METHOD"], environ["PATH_INFO"]] += 1
        time.sleep(self.delay)
        is_over = self.last is not None and self.requests.total() > self.last
        if is_over or self.rng.random() < self.failing:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            body = b"" if environ["REQUEST_METHOD"] == "HEAD" else BROKEN
            start_response("500 Internal Server Error", [("Content-Length", str(len(body)))])
            return [body]
        return self.app(environ, start_response)

    def reset(self) -> None:
        """An empty bucket, no faults, nothing counted."""
        self.failing = self.delay = 0.0
        self.last = None
        moto_api_backend.reset()
        self.check_keys(False)
        self.client.create_bucket(Bucket=BUCKET)
        self.requests.clear()

    def check_keys(self, checked: bool) -> None:
        """Whether a request needs the key of a known user; without this, moto takes any."""
        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0.0 if checked else math.inf

    def names(self) -> list[str]:
        """Of all objects in the bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", ()))

    def count(self, pattern: str) -> int:
        """How many requests there were whose method and path match: `PUT .*/running/`."""
        return sum(number for (method, path), number in self.requests.items() if re.match(pattern, f"{method} {path}"))

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
