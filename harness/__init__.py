"""A benchmark harness that compares metric-learning losses fairly. This is its Python interface:

    import harness

    results = harness.load("results")
    results.frame()
    print(results.filter(dataset="cub").tables())

The heavy packages (torch, ray, pandas) are imported when they are needed.
"""

# Type checkers take it for True. Importing it from typing takes longer than all else before Ctrl-C is heeded.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from harness.api import Failure, Result, Results, UserError, load, run

__all__ = ["Failure", "Result", "Results", "UserError", "__version__", "load", "run"]
__version__ = "0.1.0"


def __getattr__(name: str) -> "Any":
    """The interface is imported when it is used: the command line must heed Ctrl-C before it imports anything."""
    if name not in __all__:
        raise AttributeError(f"module 'harness' has no attribute {name!r}")
    from harness import shadowed

    reason = shadowed.why()
    if reason:
        raise ImportError(reason)
    import harness.api

    return getattr(harness.api, name)


def __dir__() -> list[str]:
    return __all__
