"""`python -m harness`."""

import os
import sys

# `-m` puts the working directory first on the import path, where a user's own folder losses/ may lie. What of our
# packages was found there is found anyway.
if sys.path and os.path.abspath(sys.path[0]) == os.getcwd() != os.path.dirname(
    os.path.dirname(os.path.abspath(__file__))
):
    del sys.path[0]

from harness.cli.entry import main

main()
