"""Passwords stay out of what is printed and stored."""

import pytest

from harness.spec import redacted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--storage s3://user:pass@bucket/runs", "--storage s3://***@bucket/runs"),
        ("s3://KEY:a/b+c@d@bucket/runs: no", "s3://***@bucket/runs: no"),
        ("ssh://user@host/a and ftp://u:p@host", "ssh://***@host/a and ftp://***@host"),
        ("s3://bucket/runs", "s3://bucket/runs"),
        ("az://bucket/runs?sv=2026&sig=a%2Fb&se=1 no", "az://bucket/runs?sv=2026&sig=***&se=1 no"),
        ("s3://bucket/runs?X-Amz-Security-Token=abc", "s3://bucket/runs?X-Amz-Security-Token=***"),
        ("keep the key=value that is no URI's", "keep the key=value that is no URI's"),
        ("s3://bucket/runs@2026", "s3://bucket/runs@2026"),
        ("./mine.py:Mine me@example.org", "./mine.py:Mine me@example.org"),
    ],
)
def test_user_and_password_of_a_uri_are_left_out(text: str, expected: str) -> None:
    assert redacted(text) == expected
