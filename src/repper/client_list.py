"""Lists of clients as settings say them: a count such as `8`, or numbers such as `0,3,7`."""

from __future__ import annotations

from collections.abc import Sequence

from repper.errors import RepperError


def normal(text: str | None) -> str | None:
    """The same list as the same text, however it was written; else as it is."""
    parts = [part.strip() for part in (text or "").split(",")]
    if len(parts) < 2 or not all(part.isdecimal() for part in parts if part):
        return text
    return as_text(sorted({int(part) for part in parts if part}))


def as_text(clients: Sequence[object]) -> str:
    """A list as text; with a comma after it, one client is not a count."""
    return "".join(f"{client}," for client in clients)


def clients_in(text: str, count: int, flag: str) -> tuple[int, ...]:
    """The clients, of `count`, that a text names; a `flag` is to blame for others."""
    text = text.strip()
    try:
        if "," not in text:
            first = int(text)
            if not 1 <= first <= count:
                raise RepperError(
                    f"{flag} must be a count from 1 to {count} or a list such as 0,3,7, got {text}"
                )
            return tuple(range(first))
        listed = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError as error:
        raise RepperError(
            f"{flag} must be a count or a list such as 0,3,7, got {text!r}"
        ) from error
    if wrong := [client for client in listed if not 0 <= client < count]:
        raise RepperError(
            f"{flag} names client {wrong[0]}, but clients are numbered 0 to {count - 1}"
        )
    if not listed:
        raise RepperError(f"{flag} names no client")
    return tuple(listed)
