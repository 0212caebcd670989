"""A bucket of an S3 server as storage."""

from harness.storage import Storage
from tests.s3 import S3

URI = "s3://bench/run"


def test_what_is_written_is_read_back_listed_and_removed(s3: S3) -> None:
    storage = Storage(URI)
    storage.prepare()
    reference = storage.write_sealed("checkpoints/a.pt", "a", b"weights")
    assert storage.read_sealed("checkpoints/a.pt", "a") == b"weights"
    assert storage.names("checkpoints") == [reference["path"]] == ["checkpoints/a.pt"]
    assert s3.names() == ["run/checkpoints/a.pt"]
    storage.remove("checkpoints/a.pt")
    assert storage.read("checkpoints/a.pt") is None
    assert not storage.exists("checkpoints/a.pt")
    assert storage.names("checkpoints") == []
    assert s3.names() == []
