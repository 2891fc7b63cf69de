"""The ceremony of a deployment: certificates, keys and Flower's commands, each of which is shown.

A server's home and a site's home are folders. Nothing in here talks to a network: Flower's own
programs do.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from repper.config import OPTIONS
from repper.errors import RepperError, unknown
from repper.files import read_json, write_atomically

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Nothing that we start reports to anybody, looks for updates or installs anything."""
LINK = "repper"
"""What Flower calls our server in its configuration."""
CA, CERTIFICATE, KEY = "ca.crt", "server.pem", "server.key"
VALID = datetime.timedelta(days=825)

Say = Callable[[str], None]


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def make_certificates(home: Path, names: Sequence[str]) -> None:
    """An authority of this federation's own, and a certificate of the server by these names."""
    authority, own = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "repper federation")])
    now = datetime.datetime.now(datetime.UTC)

    def builder(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + VALID)
        )

    ca = (
        builder(issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA384())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "repper server")])
    server = (
        builder(subject, own.public_key())
        .add_extension(
            x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority, hashes.SHA384())
    )
    # The authority's own key is not kept: nobody can make another certificate in its name.
    write_secret(home / KEY, _pem(own))
    write_atomically(home / CERTIFICATE, server.public_bytes(serialization.Encoding.PEM))
    write_atomically(home / CA, ca.public_bytes(serialization.Encoding.PEM))


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if re.fullmatch(r"[A-Za-z0-9.*-]{1,253}", name):
            return x509.DNSName(name)
        raise RepperError(
            f"--name {name!r} is neither an address nor a host name in plain letters (xn--...)"
        ) from None


def check_certificate(path: Path) -> None:
    """Refuse a file by which no server could be known."""
    try:
        x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise RepperError(f"there is no file {path}: take {CA} from the server's home") from error
    except ValueError as error:
        raise RepperError(f"{path} is no certificate: take {CA} from the server's home") from error


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def make_site_key(path: Path) -> str:
    """A site's key, made once; returns the public half as one line."""
    public = path.with_suffix(".pub")
    if path.exists() and not public.exists():
        raise RepperError(f"{public} is missing: restore it, or remove {path} to make a new key")
    if not path.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        write_secret(
            path,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.OpenSSH,
                serialization.NoEncryption(),
            ),
        )
        line = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        write_atomically(public, line + b"\n")
    return public.read_text().strip()


@dataclass(frozen=True)
class Server:
    """The home of a server: certificates, Flower's database and configuration, the app."""

    home: Path

    @property
    def listens(self) -> dict[str, Any]:
        """Its host and port; a folder that is no server's home is refused."""
        try:
            found: dict[str, Any] = json.loads((self.home / "server.json").read_text())
        except (OSError, ValueError) as error:
            raise RepperError(
                f"{self.home} is not the home of a server: begin with repper serve {self.home}"
            ) from error
        return found

    def check(self) -> None:
        """Refuse a folder that is no server's home."""
        _ = self.listens

    def prepare(self, host: str, port: int, names: Sequence[str]) -> None:
        """Make what is missing. Names that the certificate lacks are refused."""
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
        certificate = x509.load_pem_x509_certificate((self.home / CERTIFICATE).read_bytes())
        names_in = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        held = {str(name.value) for name in names_in.value}
        if lacking := [name for name in (own, *names) if name not in held]:
            raise RepperError(
                f"the certificate in {self.home} is not for {lacking[0]}: remove {CA}, "
                f"{CERTIFICATE} and {KEY} there to make new ones, and give {CA} to all sites again"
            )
        settings = {"host": host, "port": port}
        write_atomically(self.home / "server.json", json.dumps(settings))
        link = {"address": f"{own}:{port}", "root-certificates": str(self.home / CA)}
        content = {"superlink": {"default": LINK, LINK: link}}
        (self.home / "flwr").mkdir(exist_ok=True)
        write_atomically(self.home / "flwr" / "config.toml", tomli_w.dumps(content))
        write_app(self.home / "app")

    def command(self) -> list[str]:
        """Flower's server, for as long as it runs: TLS and node keys on, and nothing installed."""
        listens = self.listens
        return [
            program("flower-superlink"),
            "--host", listens["host"], "--port", str(listens["port"]),
            "--ssl-certfile", str(self.home / CERTIFICATE),
            "--ssl-keyfile", str(self.home / KEY),
            "--ssl-ca-certfile", str(self.home / CA),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            "--database", str(self.home / "link.db"),
        ]  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **QUIET, "FLWR_HOME": str(self.home / "flwr"), "PATH": _path()}

    def flwr(self, *arguments: str, say: Say, named: bool = False) -> Any:
        """What a command of `flwr` answers; `named` if the arguments name the server already."""
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
                f"a site's name is letters, digits, dots, - and _, 64 at most: {name!r} is not"
            )
        if not key.is_file():
            raise RepperError(f"there is no public key {key}: repper node prints and keeps it")
        if any(site.name == name for site in self.sites(say)):
            raise RepperError(f"there is a site {name!r} already: choose another name, or --revoke")
        answer = self.flwr("supernode", "register", str(key), "--name", name, say=say)
        # Flower's own list has no names.
        names = self._names() | {str(answer["node-id"]): name}
        write_atomically(self.home / "sites.json", json.dumps(names, indent=2))

    def revoke(self, name: str, say: Say) -> None:
        node = [site.node for site in self.sites(say) if site.name == name]
        if not node:
            raise unknown("site", name, [site.name for site in self.sites(say)])
        self.flwr("supernode", "unregister", node[0], say=say)

    def sites(self, say: Say) -> list[Admitted]:
        """The sites that are admitted."""
        listed = self.flwr("supernode", "list", say=say)["nodes"]
        names = self._names()
        return [
            Admitted(names.get(n["node-id"], "?"), n["node-id"], n["status"])
            for n in listed
            if n["status"] != "unregistered"
        ]

    def _names(self) -> dict[str, str]:
        path = self.home / "sites.json"
        names: dict[str, str] = read_json(path) if path.is_file() else {}
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
        write_atomically(self.home / "run.json", json.dumps({"run": str(answer["run-id"])}))

    def _last_run(self) -> str | None:
        """Flower's number of the run that was started last, whether it is over or not."""
        try:
            return str(json.loads((self.home / "run.json").read_text())["run"])
        except (OSError, ValueError, KeyError):
            return None

    def _current(self, say: Say) -> str | None:
        """Flower's number of the run that is going on, if there is one."""
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
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip


@dataclass(frozen=True)
class Admitted:
    """A site that the server knows, whether it is connected or not."""

    name: str
    node: str
    status: str


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
    return {**os.environ, **QUIET, **own, "PATH": _path()}


def program(name: str) -> str:
    """Flower's program of this name, beside our Python."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise RepperError(f"there is no program {name}: pip install 'repper[train,flower]'")
    return found


def _path() -> str:
    """Flower starts its own programs by name: those beside our Python come first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def shown(command: Sequence[str], environment: dict[str, str]) -> str:
    """A command as one could type it, with the variables that matter."""
    keys = [*QUIET, "FLWR_HOME"]
    variables = [f"{key}={shlex.quote(environment[key])}" for key in keys if key in environment]
    return " ".join(["$", *variables, shlex.join([Path(command[0]).name, *command[1:]])])


def write_app(folder: Path) -> None:
    """The app folder that `flwr run` takes, with every setting of `repper run` in its config."""
    config: dict[str, Any] = {
        "federation": "simulation", "sites": "", "classes": "", "round-timeout": 0.0,
        "min-cohort": 0, "resume": False, "overwrite": False,
    }  # fmt: skip
    for option in OPTIONS.values():
        config[option.key] = "" if option.default is None else option.default
    project = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": "repper-app", "version": "1.0.0",
            "description": "Federated image classifiers that fit each client",
            "license": {"file": "LICENSE"},
            "dependencies": ["flwr>=1.41,<1.43", "repper[train,flower]"],
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {
                "app": {
                    "publisher": "repper", "fab-format-version": 1,
                    "flwr-version-target": "1.41.0",
                    "components": {
                        "serverapp": "repper_app:server", "clientapp": "repper_app:client",
                    },
                    "config": config,
                }
            },
        },
    }  # fmt: skip
    (folder / "repper_app").mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "pyproject.toml", tomli_w.dumps(project))
    write_atomically(
        folder / "LICENSE", "Apache License 2.0, https://www.apache.org/licenses/LICENSE-2.0\n"
    )
    write_atomically(
        folder / "repper_app" / "__init__.py",
        '"""What Flower starts; everything is in repper itself."""\n\n'
        "from repper.flower.apps import client, server\n\n"
        '__all__ = ["client", "server"]\n',
    )
