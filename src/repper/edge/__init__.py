"""What runs on a device: no PyTorch anywhere in here."""

from repper.edge.saved_head import SavedHead, read_head

__all__ = ["SavedHead", "read_head"]
