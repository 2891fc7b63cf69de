"""The command line. It imports PyTorch only for a command that needs it."""

from repper.cli.commands import main

__all__ = ["main"]
