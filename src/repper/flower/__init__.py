"""Flower: the same clients and the same round loop over its grid, simulated or on real machines.

Nothing else in repper imports Flower, and nothing in here talks to a network by itself.
"""

PREFIX = "repper event: "
"""What a line of the server app's log begins with that is meant for `repper federate`."""
