"""What Flower starts; everything is in repper itself."""

from repper.flower.entry_points import client, server

__all__ = ["client", "server"]
