"""Progress of a federation that runs in other processes."""

from __future__ import annotations

import time
from typing import Any

from rich.markup import escape

from repper.basics.table import Number, Table
from repper.cli.duration import duration
from repper.cli.show import console
from repper.cli.tables import print_table


class Watch:
    """Prints one line per event on stderr."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._sites: list[str] = []
        self._rounds = self._first = 0
        self._began = time.monotonic()

    def show(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "gathering":
            here = ", ".join(event["present"]) or "none"
            self._say(f"waiting for {event['wanted']} sites; connected: {here}")
            for name, why in event.get("missing", {}).items():
                self._say(f"  {name}: {why}")
        elif kind == "begun":
            self._sites, self._rounds = event["sites"], event["rounds"]
            self._first, self._began = event["done"], time.monotonic()
            self._say(f"{len(self._sites)} sites: {', '.join(self._sites)}")
            declared = zip(self._sites, event["images"], strict=True)
            total = sum(event["images"]) / 100
            each = ", ".join(f"{name} {n} ({n / total:.0f} %)" for name, n in declared)
            self._say(f"training images declared by the sites: {each}")
        elif kind == "round":
            self._round(event)
        elif kind == "note":
            self._say(event["text"])

    def _round(self, event: dict[str, Any]) -> None:
        number = event["round"]
        names = ", ".join(self._sites[client] for client in event["cohort"])
        text = f"round {number}/{self._rounds}: {names}"
        if event["loss"] is not None:
            text += f"; loss {event['loss']:.4f}"
        if event.get("epsilon") is not None:
            text += f"; epsilon {event['epsilon']:.3f}"
        if number > self._first and self._rounds:
            passed = (time.monotonic() - self._began) / (number - self._first)
            text += f", {duration(passed * (self._rounds - number))} left"
        self._say(text)
        for client, why in event.get("absent", {}).items():
            self._say(f"  without {self._sites[int(client)]}: {why}")

    def _say(self, text: str) -> None:
        self._console.print(escape(text), soft_wrap=True)

    def result(self, event: dict[str, Any], *, stderr: bool = False) -> None:
        """Print the table at the end, on stdout unless stdout is for JSON."""
        rows = [
            [name, Number(accuracy, missing="not shared")]
            for name, accuracy in event["sites"].items()
        ]
        out = console(stderr=stderr)
        print_table(out, Table.of(["site", "accuracy, %"], rows))
        out.print(f"encoder {event['encoder_digest'][:16]}", soft_wrap=True)
