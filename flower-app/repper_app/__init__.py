"""What Flower starts; everything is in repper itself."""

from repper.flower.apps import client, server

__all__ = ["client", "server"]
