"""Lists of clients in settings: a number such as `8`, or numbers such as `0,3,7`."""

from __future__ import annotations

from collections.abc import Sequence

from repper.basics.errors import RepperError


def normal(text: str | None) -> str | None:
    """A canonical spelling of a list of clients; text that is no list is returned unchanged."""
    parts = [part.strip() for part in (text or "").split(",")]
    if len(parts) < 2 or not all(part.isdecimal() for part in parts if part):
        return text
    return as_text(sorted({int(part) for part in parts if part}))


def as_text(clients: Sequence[object]) -> str:
    """A list of clients as text; a trailing comma marks a list of a single client."""
    return "".join(f"{client}," for client in clients)


def clients_in(text: str, count: int, flag: str) -> tuple[int, ...]:
    """Parse a list of clients, of `count` clients; errors name `flag`."""
    text = text.strip()
    try:
        if "," not in text:
            first = int(text)
            if not 1 <= first <= count:
                raise RepperError(
                    f"{flag} must be a number from 1 to {count} or a list such as 0,3,7, got {text}"
                )
            return tuple(range(first))
        listed = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError as error:
        raise RepperError(
            f"{flag} must be a number of clients or a list such as 0,3,7, got {text!r}"
        ) from error
    if wrong := [client for client in listed if not 0 <= client < count]:
        raise RepperError(
            f"{flag} names client {wrong[0]}, but clients are numbered 0 to {count - 1}"
        )
    if not listed:
        raise RepperError(f"{flag} names no client")
    return tuple(listed)
