"""What never leaves a client: its own parameters, on the client's side of the fleet.

One file per client that has trained, and per round in which it did: `private/7/12.safetensors`. A
client that was never sampled has none and stands at the initial values, so ten thousand clients
cost no more disk than those who took part. The one before the last is kept, too, because a round
that was interrupted is repeated from where the client stood before it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from repper.errors import RepperError
from repper.params import Params, is_encoder, is_personal, read_params, save_params, select

INITIAL = "initial.safetensors"


@final
@dataclass(frozen=True)
class PrivateStore:
    """The private parameters of the clients of one run, in a folder."""

    folder: Path

    def begin(self, initial: Params) -> None:
        """Keep the values that a client starts from."""
        self.folder.mkdir(exist_ok=True)
        save_params(self.folder / INITIAL, initial, {})

    def read(self, client: int, number: int) -> Params:
        """The client's parameters as they were after round `number`."""
        params, _ = read_params(self.folder / INITIAL)
        if (path := self._newest(client, number)) is not None:
            own, _ = read_params(path)
            if not own.keys() <= params.keys():
                raise RepperError(f"{path} does not hold private parameters of this run")
            params |= own
        return params

    def digest(self, client: int, number: int) -> str:
        """The digest in the client's file after round `number`; empty if it has none."""
        path = self._newest(client, number)
        return "" if path is None else read_params(path)[1]["digest"]

    def write(self, client: int, number: int, params: Params, keep_all: bool) -> None:
        """Keep what the client has after round `number`; older files go unless `keep_all`."""
        own = self.folder / str(client)
        own.mkdir(exist_ok=True)
        before = sorted((n for n in self._rounds(client) if n < number), reverse=True)
        save_params(own / f"{number}.safetensors", params, {})
        for old in [] if keep_all else before[1:]:
            (own / f"{old}.safetensors").unlink(missing_ok=True)

    def clients(self) -> list[int]:
        """The clients that have a file, in order."""
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def encoder_of(self, client: int, number: int) -> Params:
        """The client's own encoder, as `encoder.*`; empty if it has none of its own."""
        params = self.read(client, number)
        personal = select(params, is_personal)
        own = {name.removeprefix("personal."): t for name, t in personal.items()} or params
        return select(own, is_encoder)

    def copy_to(self, other: PrivateStore, number: int, wanted: Callable[[str], bool]) -> None:
        """Give another store what clients had after round `number`, as its round 0.

        Only parameters that `wanted` names are given.
        """
        for client in self.clients():
            if (path := self._newest(client, number)) is not None:
                other.write(client, 0, select(read_params(path)[0], wanted), keep_all=True)

    def link_to(self, folder: Path) -> None:
        """A second store with the same content that takes no more space where files can be linked.

        That is safe because a file is never changed: it is replaced as a whole, or removed.
        """
        shutil.copytree(self.folder, folder, copy_function=_link, dirs_exist_ok=True)

    def _newest(self, client: int, number: int) -> Path | None:
        newest = max((n for n in self._rounds(client) if n <= number), default=None)
        return None if newest is None else self.folder / str(client) / f"{newest}.safetensors"

    def _rounds(self, client: int) -> Iterator[int]:
        with suppress(FileNotFoundError):
            for path in (self.folder / str(client)).iterdir():
                if path.suffix == ".safetensors" and path.stem.isdecimal():
                    yield int(path.stem)


def _link(source: str, target: str) -> str:
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target
