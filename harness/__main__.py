"""`python -m harness`."""

from harness.cli.entry import main

main()
