"""Hosts on this machine: each with its own network, processes, folders and users, and a real nginx.

A host is a set of Linux namespaces. All of them hang on one bridge, in a namespace of its own: the
machine's own network is not touched. To end a host's first process ends everything on it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from federation.conftest import LONG, Process, environment, until, write_images

PREFIX = "repper-"
"""Of the names of all namespaces."""
CHECKOUT = Path(__file__).parents[2]
USER = 61000
"""The user `repper` of all hosts."""
SITES = ("hospital-a", "hospital-b", "hospital-c")
ADDRESSES = {name: f"10.77.0.{n}" for n, name in enumerate(("server", *SITES, "outsider"), 1)}
FIGURES: list[str] = []
"""What tests have measured, for the end of their log."""
SETTINGS = ("--epochs", 1, "--width", 0.25, "--participation", 1, "--image-size", 8)


def pytest_terminal_summary(terminalreporter) -> None:
    for figure in FIGURES:
        terminalreporter.write_line(figure)


def missing() -> str | None:
    """Why there can be no hosts here."""
    if sys.platform != "linux":
        return "hosts are made of Linux namespaces"
    if os.geteuid() != 0:
        return "hosts need root"
    for program, package in {
        "ip": "iproute2", "iptables": "iptables", "nginx": "nginx-light", "faketime": "faketime",
        "ss": "iproute2", "nsenter": "util-linux", "setpriv": "util-linux", "curl": "curl",
    }.items():  # fmt: skip
        if shutil.which(program) is None:
            return f"hosts need {program} (Debian's {package})"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return "this machine allows no namespaces" if tried.returncode else None


def run(*command: object, check: bool = True, **more: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=LONG,
        check=False, **more,
    )  # fmt: skip
    assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


def remove_networks() -> None:
    """Remove what these tests, or earlier ones that were killed, have left."""
    for line in run("ip", "netns", "list").stdout.splitlines():
        if (name := line.split()[0]).startswith(PREFIX):
            for pid in run("ip", "netns", "pids", name, check=False).stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            run("ip", "netns", "delete", name, check=False)


def made_visible() -> list[str]:
    """Shell lines that let every user of a host read Python and the checkout, and nothing else.

    Both may lie below a folder that only root may enter.
    """
    hidden: dict[Path, list[Path]] = {}
    for path in {Path(p) for p in (sys.base_prefix, sys.prefix, CHECKOUT)}:
        shut = [one for one in reversed(path.parents) if not one.stat().st_mode & 0o001]
        if shut:
            hidden.setdefault(shut[0], []).append(path)
    lines = []
    for folder, paths in hidden.items():
        for number, path in enumerate(paths):
            lines += [f"mkdir -p /run/{number}", f"mount --bind '{path}' /run/{number}"]
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs '{folder}'")
        for number, path in enumerate(paths):
            lines += [f"mkdir -p '{path}'", f"mount --bind /run/{number} '{path}'"]
    return lines


class Host:
    """A machine: its network, its processes, its /srv on a disk of its own, its users."""

    def __init__(self, name: str, logs: Path, megabytes: int = 400) -> None:
        self.name, self.logs, self.megabytes = name, logs, megabytes
        self.address = ADDRESSES[name]
        self.net = PREFIX + name
        self.processes: list[Process] = []
        run("ip", "netns", "add", self.net)
        port = f"v{self.address.rpartition('.')[2]}"
        run("ip", "link", "add", port, "netns", PREFIX + "net", "type", "veth", "peer", "name", "eth0", "netns", self.net)  # fmt: skip
        self.port = port
        run("ip", "-n", PREFIX + "net", "link", "set", port, "master", "bridge", "up")
        run("ip", "-n", self.net, "address", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("eth0", "lo"):
            run("ip", "-n", self.net, "link", "set", link, "up")
        self.power_on()

    def power_on(self) -> None:
        """Start with empty disks."""
        names = "".join(f"{address} {name}.example\n" for name, address in ADDRESSES.items())
        users = f"repper:x:{USER}:{USER}::/srv/repper:/bin/sh\n"
        script = [
            "set -e", "mount --make-rprivate /",
            "mount -t tmpfs -o mode=755 tmpfs /run",
            *made_visible(),
            f"mount -t tmpfs -o mode=755,size={self.megabytes}m tmpfs /srv",
            "mount -t tmpfs -o mode=1777 tmpfs /tmp",
            "for folder in /var/log/nginx /var/lib/nginx /opt; do",
            "  mount -t tmpfs -o mode=755 tmpfs $folder",
            "done",
            "cp -r /etc /run/etc", "mount --bind /run/etc /etc",
            f"printf '127.0.0.1 localhost\\n{names}' > /etc/hosts",
            f"printf '{users}' >> /etc/passwd", f"printf 'repper:x:{USER}:\\n' >> /etc/group",
            "rm -f /etc/nginx/sites-enabled/*",
            # As in docs/deploy.md; both are links into this checkout.
            f"mkdir /opt/repper && mount --bind '{sys.prefix}' /opt/repper",
            f"install -d -o {USER} -g {USER} -m 755 /srv/repper /srv/images",
            "touch /run/ready",
            "exec sleep infinity",
        ]  # fmt: skip
        with (self.logs / f"{self.name}-start.log").open("w") as log:
            self.first = subprocess.Popen(
                ["ip", "netns", "exec", self.net, "unshare", "--mount", "--pid", "--fork",
                 "--kill-child", "--mount-proc", "sh", "-c", "\n".join(script)],
                stdin=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        until(self._is_ready, f"{self.name} does not start", 60)

    def _is_ready(self) -> bool:
        children = Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children").read_text()
        if not children.split():
            return False
        self.pid = int(children.split()[0])
        return (self.root / "run" / "ready").exists()

    @staticmethod
    def user(name: str) -> int:
        return {"root": 0, "repper": USER}[name]

    @property
    def root(self) -> Path:
        """The root folder of this host, as seen from outside."""
        return Path(f"/proc/{self.pid}/root")

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def off(self) -> None:
        """Cut the power: every process ends at once, and disks are empty at the next start."""
        self.first.kill()
        self.first.wait()
        for process in self.processes:
            process.process.wait()

    def command(self, *command: object, user: int = USER, clock: str | None = None) -> list[str]:
        inside = [
            "nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--",
            "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups",
            "env", "-C", "/srv/repper", "HOME=/srv/repper", "TMPDIR=/tmp",
            f"PATH=/opt/repper/bin:{os.environ['PATH']}",
        ]  # fmt: skip
        if clock:
            inside += ["faketime", "-f", clock]
        return [*inside, *map(str, command)]

    def run(self, *command: object, user: int = USER, check: bool = True) -> subprocess.CompletedProcess[str]:  # fmt: skip
        return run(*self.command(*command, user=user), check=check, env=environment())

    def repper(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self.run("repper", *arguments, check=False)
        assert done.returncode == code, f"{done.stdout}{done.stderr}"
        return done

    def start(self, log: str, *command: object, user: int = USER, clock: str | None = None) -> Process:  # fmt: skip
        process = Process(
            self.command(*command, user=user, clock=clock), self.logs / f"{self.name}-{log}.log"
        )
        self.processes.append(process)
        return process

    def nginx(self) -> Process:
        return self.start("nginx", "nginx", "-g", "daemon off;", user=0)

    def pids(self, word: str = "", user: int = USER) -> list[int]:
        """The processes of a user of this host whose command line has this word."""
        found = []
        for pid in run("ip", "netns", "pids", self.net).stdout.split():
            process = Path(f"/proc/{pid}")
            with suppress(OSError):
                here = process.stat().st_uid == user
                if here and word.encode() in (process / "cmdline").read_bytes():
                    found.append(int(pid))
        return found

    def crash(self) -> None:
        """End all that the user of this host runs, without a word."""

        def all_gone() -> bool:
            for pid in (pids := self.pids()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        until(all_gone, f"{self.name} does not crash", 60)

    def curl(self, path: str, *more: object, user: int = USER) -> int:
        """The status that the proxy answers to a request."""
        done = self.run(
            "curl", "-s", "--cacert", "/srv/repper/ca.crt", "-m", 60, "-o", "/dev/null",
            "-w", "%{http_code}", *more, f"https://server.example:8443{path}",
            check=False, user=user,
        )  # fmt: skip
        return int(done.stdout or 0)

    def cut(self, link: str = "down") -> None:
        """Cut the link to the switch, or set it `up` again."""
        run("ip", "-n", PREFIX + "net", "link", "set", self.port, link)

    def lose(self, share: float) -> None:
        """Lose this share of all packets that arrive."""
        run("ip", "netns", "exec", self.net, "iptables", "-A", "INPUT", "-i", "eth0", "-m",
            "statistic", "--mode", "random", "--probability", share, "-j", "DROP")  # fmt: skip

    def lose_nothing(self) -> None:
        run("ip", "netns", "exec", self.net, "iptables", "-F", "INPUT")


def memory(pid: int) -> float:
    """Resident memory of a process, in MB."""
    [line] = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line
    ]
    return int(line.split()[1]) / 1024


def give(path: Path) -> None:
    """Give a file or folder to the hosts' user."""
    for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
        os.chown(one, USER, USER)


class Fleet:
    """A server behind nginx, sites and an outsider."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.hosts: dict[str, Host] = {}
        run("ip", "netns", "add", PREFIX + "net")
        run("ip", "-n", PREFIX + "net", "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", PREFIX + "net", "link", "set", "bridge", "up")
        for name in ADDRESSES:
            self.hosts[name] = Host(name, logs)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    @property
    def server(self) -> Host:
        return self.hosts["server"]

    @property
    def outsider(self) -> Host:
        return self.hosts["outsider"]

    @property
    def sites(self) -> list[Host]:
        return [self.hosts[name] for name in SITES]

    def copy(self, source: str, target: str) -> None:
        """Copy a file from host to host, `HOST:PATH`, by a way that nobody listens on."""
        (here, path), (there, to) = (one.split(":", 1) for one in (source, target))
        shutil.copyfile(self[here].path(path), self[there].path(to))
        give(self[there].path(to))

    def close(self) -> None:
        for host in self.hosts.values():
            host.off()
        remove_networks()


@pytest.fixture(scope="session", autouse=True)
def hosts_are_possible() -> None:
    if why := missing():
        pytest.skip(why)


@pytest.fixture(scope="session")
def images(tmp_path_factory, hosts_are_possible) -> Path:
    """Folders of images by site."""
    folder = tmp_path_factory.mktemp("images")
    for number, name in enumerate(SITES):
        write_images(folder / name, range(40 * number, 40 * number + 40))
    return folder


@pytest.fixture(scope="session")
def fleet(tmp_path_factory, images) -> Iterator[Fleet]:
    """Hosts with images at the sites and nothing else."""
    remove_networks()
    # Many short processes of a user that cannot write compiled files would each compile repper.
    run(sys.executable, "-m", "compileall", "-q", CHECKOUT / "src")
    fleet = None
    try:
        fleet = Fleet(tmp_path_factory.mktemp("hosts"))
        for name in SITES:
            shutil.copytree(images / name, fleet[name].path("/srv/images"), dirs_exist_ok=True)
            give(fleet[name].path("/srv/images"))
        yield fleet
    finally:
        if fleet is None:
            remove_networks()
        else:
            fleet.close()


@pytest.fixture(scope="session")
def serial(tmp_path_factory, images) -> Callable[..., dict]:
    """The result of the same settings on the same folders, in one process."""

    def run_serially(*arguments: object) -> dict:
        out = tmp_path_factory.mktemp("serial") / "run"
        done = run(
            sys.executable, "-m", "repper", "run", "--data", images, "--partition", "folders",
            "--engine", "serial", "--knn", 0, "--out", out, "--json", *arguments,
            env=environment(),
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])

    return run_serially


@pytest.fixture(scope="session")
def walked(fleet) -> dict[str, str]:
    """The federation of docs/deploy.md, done once and still there; what each step printed."""
    from .walk import walk

    return walk(fleet)
