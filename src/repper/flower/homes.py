"""A server's home and a site's home: folders from which Flower's commands are put together.

Nothing in here talks to a network: Flower's own programs do.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from repper.basics.documents import as_kind, check_kinds, read_json, write_json
from repper.basics.errors import RepperError, unknown
from repper.basics.files import write_atomically
from repper.engines.processes import KEEP_MEMORY
from repper.flower import warm
from repper.flower.app_folder import write_app
from repper.flower.database import DATABASE, shrink_by_itself
from repper.flower.keys import CA, CERTIFICATE, KEY, make_certificates, names_in
from repper.flower.pace import LOOK_FOR_WORK
from repper.flower.programs import program, quiet, shown

LINK = "repper"
"""What Flower calls our server in its configuration."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Server:
    """The home of a server: certificates, Flower's database and configuration, the app."""

    home: Path

    @property
    def listens(self) -> dict[str, Any]:
        """Its host and port; a folder that is no server's home is refused."""
        path = self.home / "server.json"
        if not path.is_file():
            raise RepperError(
                f"{self.home} is not the home of a server: begin with repper serve {self.home}"
            )
        found: dict[str, Any] = read_json(path)
        check_kinds(path, found, {"host": str, "port": int})
        return found

    def check(self) -> None:
        """Refuse a folder that is no server's home."""
        _ = self.listens

    def prepare(self, host: str, port: int, names: Sequence[str]) -> None:
        """Create missing files. Refuse names that the certificate lacks."""
        self.home.mkdir(parents=True, exist_ok=True)
        # All addresses, or one: who runs commands on this machine must reach it by a certain one.
        own = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
        known = ["127.0.0.1", "localhost", own, *names]
        found = [name for name in (CA, CERTIFICATE, KEY) if (self.home / name).is_file()]
        if found and len(found) < 3:
            raise RepperError(
                f"{self.home} has {' and '.join(found)} only: restore the others of {CA}, "
                f"{CERTIFICATE} and {KEY}, or remove them all to make new ones"
            )
        if not found:
            make_certificates(self.home, list(dict.fromkeys(known)))
        held = names_in(self.home / CERTIFICATE)
        if lacking := [name for name in (own, *names) if name not in held]:
            raise RepperError(
                f"the certificate in {self.home} is not for {lacking[0]}: remove {CA}, "
                f"{CERTIFICATE} and {KEY} there to make new ones, and give {CA} to all sites again"
            )
        settings = {"host": host, "port": port}
        write_json(self.home / "server.json", settings, indent=None)
        link = {"address": f"{own}:{port}", "root-certificates": str(self.home / CA)}
        content = {"superlink": {"default": LINK, LINK: link}}
        (self.home / "flwr").mkdir(exist_ok=True)
        write_atomically(self.home / "flwr" / "config.toml", tomli_w.dumps(content))
        write_app(self.home / "app")
        shrink_by_itself(self.home / DATABASE)
        warm.prepare(self.home, warm.SERVER_APP, idle=None)

    def command(self) -> list[str]:
        """Flower's server, for as long as it runs: TLS and node keys on, and nothing installed."""
        listens = self.listens
        return [
            sys.executable, "-Pm", "repper.flower.superlink",
            "--host", listens["host"], "--port", str(listens["port"]),
            "--ssl-certfile", str(self.home / CERTIFICATE),
            "--ssl-keyfile", str(self.home / KEY),
            "--ssl-ca-certfile", str(self.home / CA),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            "--database", str(self.home / DATABASE),
        ]  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        return warm.with_shim(self.home, quiet(FLWR_HOME=str(self.home / "flwr")))

    def flwr(self, *arguments: str, say: Say, named: bool = False) -> Any:
        """Run a command of `flwr` and return its answer; `named`: the arguments name the server."""
        link = () if named else (LINK,)
        command = [program("flwr"), *arguments, *link, "--format", "json"]
        say(shown(command, self.environment))
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        try:
            answer = json.loads(done.stdout)
        except ValueError as error:
            said = " ".join((done.stderr or done.stdout).split())[-300:]
            raise RepperError(
                f"Flower did not answer as expected ({said or 'nothing'}): is repper serve "
                f"{self.home} running?"
            ) from error
        if not answer.get("success", True):
            lines = str(answer.get("error-message", answer)).strip().splitlines()
            raise RepperError(f"Flower refused: {lines[-1]}")
        return answer

    def admit(self, name: str, key: Path, say: Say) -> None:
        """Let the site with this public key in, under this name."""
        if not re.fullmatch(r"[\w.-]{1,64}", name):
            raise RepperError(
                f"a site's name must be at most 64 letters, digits, dots, - and _, got {name!r}"
            )
        if not key.is_file():
            raise RepperError(f"there is no file {key}: copy site.pub from the home of the site")
        if any(site.name == name for site in self.sites(say)):
            raise RepperError(f"there is a site {name!r} already: choose another name, or --revoke")
        answer = self.flwr("supernode", "register", str(key), "--name", name, say=say)
        # Flower's own list has no names.
        names = self._names() | {str(answer["node-id"]): name}
        write_json(self.home / "sites.json", names)

    def revoke(self, name: str, say: Say) -> None:
        node = [site.node for site in self.sites(say) if site.name == name]
        if not node:
            raise unknown("site", name, [site.name for site in self.sites(say)])
        self.flwr("supernode", "unregister", node[0], say=say)

    def sites(self, say: Say) -> list[Admitted]:
        """The admitted sites."""
        listed = self.flwr("supernode", "list", say=say)["nodes"]
        names = self._names()
        return [
            Admitted(
                names.get(n["node-id"], "?"),
                n["node-id"],
                n["status"],
                str(n.get(f"{n['status']}-at") or ""),
            )
            for n in listed
            if n["status"] != "unregistered"
        ]

    def _names(self) -> dict[str, str]:
        path = self.home / "sites.json"
        names: dict[str, str] = read_json(path) if path.is_file() else {}
        as_kind(dict[str, str], names, path, "list of names")
        return names

    def start(self, config: dict[str, Any], say: Say) -> None:
        """Start a run; there is one at a time."""
        if (running := self._current(say)) is not None:
            raise RepperError(
                f"a federation is running already (Flower's run {running}): watch it with "
                f"--attach, or stop it with --stop (a server that was killed gives it up by "
                f"itself within a minute)"
            )
        path = self.home / "run.toml"
        write_atomically(path, tomli_w.dumps(config))
        # The app folder comes before the server's name, so both are given here.
        command = ("run", str(self.home / "app"), LINK, "--run-config", str(path))
        answer = self.flwr(*command, say=say, named=True)
        write_json(self.home / "run.json", {"run": str(answer["run-id"])}, indent=None)

    def _last_run(self) -> str | None:
        """Flower's number of the run that was started last, whether it is over or not."""
        try:
            return str(read_json(self.home / "run.json")["run"])
        except (RepperError, KeyError, TypeError):
            return None

    def _current(self, say: Say) -> str | None:
        """Flower's number of the run in progress, if there is one."""
        if (run := self._last_run()) is None:
            return None
        runs = self.flwr("list", "--run-id", run, say=say)["runs"]
        return run if runs and not runs[0]["status"].startswith("finished") else None

    def stop(self, say: Say) -> None:
        run = self._current(say)
        if run is None:
            raise RepperError("no federation is running")
        self.flwr("stop", run, say=say)

    def log(self, say: Say) -> subprocess.Popen[str]:
        """The log of the last run, from its beginning and as it grows."""
        if (run := self._last_run()) is None:
            raise RepperError(f"no federation was started from {self.home} yet")
        command = [program("flwr"), "log", run, LINK, "--stream"]
        say(shown(command, self.environment))
        # Into a pipe, Python keeps lines back until there are 8 kB of them: minutes of silence.
        environment = self.environment | {"PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip


@dataclass(frozen=True)
class Admitted:
    """A site that the server knows, whether it is connected or not."""

    name: str
    node: str
    status: str
    since: str = ""
    """When it last connected or disconnected."""


def node_command(home: Path, server: str, ca: Path, port: int) -> list[str]:
    """Flower's node, for as long as it runs; `port` is for its own processes on this machine."""
    return [
        program("flower-supernode"),
        "--superlink", server,
        "--root-certificates", str(ca),
        "--auth-supernode-private-key", str(home / "site.key"),
        "--node-config", f"home={json.dumps(str(home))}",
        "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip


def node_environment(home: Path) -> dict[str, str]:
    # Decoded images lie in a cache: it belongs into the site's home, too.
    own = {"FLWR_HOME": str(home / "flwr"), "XDG_CACHE_HOME": str(home / "cache")}
    return warm.with_shim(home, quiet(**KEEP_MEMORY, **LOOK_FOR_WORK, **own))
