"""Code that runs on a device: no module in here uses PyTorch."""

from repper.edge.saved_head import SavedHead, read_head

__all__ = ["SavedHead", "read_head"]
