"""`python -m harness`."""

from harness.cli.main import main

main()
