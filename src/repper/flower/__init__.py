"""Flower: the same clients and the same round loop over its grid, simulated or on real machines.

Nothing else in repper imports Flower, and nothing in here talks to a network by itself.
"""

PREFIX = "repper event: "
"""Prefix of lines in the server app's log that are meant for `repper federate`."""
