"""Private parameters of clients, stored on the clients' side.

One file per client that has trained, and per round in which it did: `private/7/12.safetensors`. A
client that was never sampled has none and stands at the initial values (with a personal copy, at
what the server sent), so ten thousand clients cost no more disk than those who took part. The one
before the last is kept, too, because a round
that was interrupted is repeated from where the client stood before it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast, final

from repper.basics.errors import RepperError
from repper.basics.names import is_encoder, is_personal
from repper.basics.params import Params, read_params, save_params, select
from repper.basics.tensor_files import check_ties, read_notes

INITIAL = "initial.safetensors"


@final
@dataclass(frozen=True)
class PrivateStore:
    """The private parameters of the clients of one run, in a folder.

    Files say of which run, client and round they are, and those of others are refused.
    """

    folder: Path
    run: str = ""

    def begin(self, initial: Params) -> None:
        """Store the initial values of clients, and delete files of an earlier attempt."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        save_params(self.folder / INITIAL, initial, self._ties())

    @property
    def begun(self) -> bool:
        return (self.folder / INITIAL).is_file()

    @cached_property
    def _initial(self) -> Params:
        return self._read(self.folder / INITIAL)

    def read(self, client: int, number: int) -> Params:
        """The client's parameters as they were after round `number`."""
        path = self._newest(client, number)
        if path is None:
            return dict(self._initial)
        return self._initial | self._read(path, client=client, round=int(path.stem))

    def digest(self, client: int, number: int) -> str:
        """The digest in the client's file after round `number`; empty if it has none."""
        path = self._newest(client, number)
        if path is None:
            return ""
        notes = read_notes(path)
        check_ties(path, notes, run=self.run, client=client, round=path.stem)
        return notes["digest"]

    def write(self, client: int, number: int, params: Params, keep_all: bool) -> None:
        """Store a client's parameters of round `number`; delete older ones unless `keep_all`."""
        try:
            (self.folder / str(client)).mkdir(exist_ok=True)
        except OSError as error:
            raise RepperError(
                f"cannot write {self.folder / str(client)}: {error.strerror}"
            ) from error
        before = sorted((n for n in self._rounds(client) if n < number), reverse=True)
        ties = self._ties(client=client, round=number)
        save_params(self.path(client, number), params, ties)
        for old in [] if keep_all else before[1:]:
            self.path(client, old).unlink(missing_ok=True)

    def forget_after(self, client: int, number: int) -> None:
        """Delete what the client stored after round `number`: those rounds went on without it."""
        for later in [n for n in self._rounds(client) if n > number]:
            self.path(client, later).unlink(missing_ok=True)

    def path(self, client: int, number: int) -> Path:
        return self.folder / str(client) / f"{number}.safetensors"

    def clients(self, number: int) -> list[int]:
        """The clients that had a file after round `number`, in order."""
        known = sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())
        return [client for client in known if self._newest(client, number) is not None]

    def encoder_of(self, client: int, number: int) -> Params:
        """The client's own encoder, as `encoder.*`; empty if it has none of its own."""
        params = self.read(client, number)
        personal = select(params, is_personal)
        own = {name.removeprefix("personal."): t for name, t in personal.items()} or params
        return select(own, is_encoder)

    def copy_to(self, other: PrivateStore, number: int, wanted: Callable[[str], bool]) -> None:
        """Copy clients' parameters after round `number` to another store, as its round 0.

        Only parameters that `wanted` names are given.
        """
        for client in self.clients(number):
            path = cast(Path, self._newest(client, number))
            own = self._read(path, client=client, round=int(path.stem))
            other.write(client, 0, select(own, wanted), keep_all=True)

    def link_to(self, folder: Path) -> None:
        """Make a second store with the same content, by hard links where possible.

        That is safe because a file is never changed: it is replaced as a whole, or removed.
        """
        shutil.copytree(self.folder, folder, copy_function=_link, dirs_exist_ok=True)

    def files(self) -> Iterator[tuple[int, int]]:
        """The client and round of every file."""
        for client in sorted(int(p.name) for p in self.folder.iterdir() if p.name.isdecimal()):
            yield from ((client, number) for number in sorted(self._rounds(client)))

    def check(self, client: int, number: int) -> None:
        """Refuse a client's file that is damaged, or of another client, round or run."""
        self._read(self.path(client, number), client=client, round=number)

    def check_initial(self) -> None:
        """Refuse damaged values that clients start from."""
        self._read(self.folder / INITIAL)

    def _read(self, path: Path, **ties: int) -> Params:
        params, notes = read_params(path)
        check_ties(path, notes, run=self.run, **ties)
        return params

    def _ties(self, **ties: int) -> dict[str, str]:
        named = {"run": self.run} if self.run else {}
        return named | {name: str(tie) for name, tie in ties.items()}

    def _newest(self, client: int, number: int) -> Path | None:
        newest = max((n for n in self._rounds(client) if n <= number), default=None)
        return None if newest is None else self.path(client, newest)

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
