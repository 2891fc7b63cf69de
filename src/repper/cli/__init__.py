"""The command line. It imports PyTorch only for a command that needs it."""

from __future__ import annotations

from repper.cli.interrupt import Loading

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    with Loading():
        from repper.cli.commands import main as run
    return run(argv)
