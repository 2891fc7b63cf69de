"""The warm process and the shim before it: what a message finds is what a fresh process has."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from repper.flower import shim, warm
from repper.flower.programs import quiet

if not warm.can_be_warm():
    pytest.skip("needs Linux", allow_module_level=True)

PROGRAM = """\
#!{python}
import json, os, sys, threading
modules = "torch._dynamo" in sys.modules and "repper.flower.entry_points" in sys.modules
if "__main__" != __name__:
    raise SystemExit(99)
def state():
    import numpy as np
    import signal
    return {{
        "warm": modules,
        "argv": sys.argv, "cwd": os.getcwd(), "environ": dict(os.environ), "path": sys.path[0],
        "umask": os.umask(0), "stdin": sys.stdin.read(),
        "descriptors": sorted(os.listdir("/proc/self/fd"))[:4],
        "ignored": [int(s) for s in signal.valid_signals() if signal.getsignal(s) is signal.SIG_IGN],
        "handlers": [str(signal.getsignal(s)) for s in (2, 3, 15)],
        "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "threads": threading.active_count(),
        "buffered": [sys.stdout.line_buffering, sys.stderr.line_buffering],
        "draw": float(np.random.rand()),
        "seen": [getattr(json, "left_behind", None), os.environ.get("LEFT_BEHIND")],
    }}
exec(sys.argv[1])
"""
"""Does what it is told, in the place of Flower's program."""


def home_with(folder: Path, idle: int | None = 60) -> Path:
    """A home with a shim for our program."""
    home = folder / ("a long name " * 12)  # too long for the address of a socket, and with blanks
    home.mkdir()
    program = folder / "flwr-clientapp"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o700)
    warm.prepare(home, "flwr-clientapp", idle)
    line = home / warm.FOLDER / "flwr-clientapp"
    text = line.read_text()
    real = str(Path(sys.executable).parent / "flwr-clientapp")
    assert real in text
    line.write_text(text.replace(real, str(program)))
    return home


class Site:
    """The process that a warm one belongs to, in place of Flower's superexec."""

    def __init__(self, folder: Path, idle: int | None = 60) -> None:
        self.home = home_with(folder, idle)
        self.folder = self.home / warm.FOLDER
        self.environment = warm.with_shim(self.home, quiet())

    def start(self, code: str, *more: str, **options) -> subprocess.Popen[str]:
        """Send a message, as Flower does."""
        given = {
            "env": self.environment, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE, "text": True, **options,
        }  # fmt: skip
        return subprocess.Popen(
            ["flwr-clientapp", textwrap.dedent(code), *more], **given,
        )  # fmt: skip

    def send(self, code: str, *more: str, **options) -> subprocess.CompletedProcess[str]:
        given = options.pop("input", None)
        if given is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(code, *more, **options)
        out, err = process.communicate(given, timeout=200)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def state(self, **options) -> dict:
        return json.loads(self.send("print(json.dumps(state()))", **options).stdout)

    def servers(self) -> list[int]:
        return [
            int(p.name)
            for p in Path("/proc").iterdir()
            if p.name.isdecimal() and str(self.folder.parent.parent) in _read(p / "cmdline")
            and "fork_server" in _read(p / "cmdline")
        ]  # fmt: skip

    @property
    def server(self) -> int:
        """The process id of the warm process: the first of those with its command line."""
        return min(self.servers())


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def until(holds, what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    one = Site(tmp_path_factory.mktemp("site"))
    yield one
    for process in one.servers():
        os.kill(process, signal.SIGKILL)


def test_a_message_finds_what_a_fresh_process_has(site, tmp_path):
    program = site.folder.parent.parent / "flwr-clientapp"
    more = ("--token", "a b\n'c'", "\udcff")
    environment = site.environment | {"ODD": "\udcfe\n=", "GRPC_VERBOSITY": "error"}
    options = {"cwd": tmp_path, "env": environment, "input": "given", "umask": 0o027}
    found = json.loads(site.send("print(json.dumps(state()))", *more, **options).stdout)
    fresh = json.loads(
        subprocess.run(
            [program, "print(json.dumps(state()))", *more],
            capture_output=True, text=True, check=True, timeout=60, **options,
        ).stdout
    )  # fmt: skip
    assert found.pop("warm")
    assert not fresh.pop("warm")
    assert found.pop("draw") != fresh.pop("draw")
    # /bin/sh, which starts the shim, adds some, and modules others when they are imported.
    by_shell, by_modules = {"PWD", "OLDPWD", "SHLVL", "_"}, {"KMP_", "TORCHINDUCTOR_CACHE_DIR"}
    added = {*found["environ"]} - {*fresh["environ"]} - by_shell
    assert not [name for name in added if not name.startswith((*by_modules,))]
    for state in (found, fresh):
        names = {*fresh["environ"]} - by_shell
        state["environ"] = {name: state["environ"].get(name) for name in names}
    assert found == fresh


def test_nothing_of_a_message_is_there_in_the_next(site):
    site.send("json.left_behind = 1; os.environ['LEFT_BEHIND'] = '1'; os.chdir('/'); os.umask(0)")
    state = site.state()
    assert state["seen"] == [None, None]
    assert state["cwd"] == str(Path.cwd())
    assert state["descriptors"] == ["0", "1", "2", "3"]  # the last is the folder that is listed
    assert state["draw"] != site.state()["draw"]


def test_the_warm_process_keeps_nothing_of_its_messages(site):
    site.state()
    server = Path("/proc", str(site.server))
    secret = "token-" + os.urandom(8).hex()
    for _ in range(5):
        site.send("print(1)", "--token", secret, env=site.environment | {"SECRET": secret})
    # The standard three, where it listens, and whose end it waits for.
    until(lambda: len([*(server / "fd").iterdir()]) == 5, "a descriptor is left")
    assert len([*(server / "task").iterdir()]) == 1
    assert [p.read_text() for p in server.glob("task/*/children")] == [""]
    assert secret.encode() not in _memory(server)
    assert stat.S_IMODE(site.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((site.folder / shim.SOCKET).stat().st_mode) == 0o600


def _memory(process: Path) -> bytes:
    """What it can write to, as far as it is in memory."""
    found = []
    with (process / "mem").open("rb") as memory:
        for line in (process / "maps").read_text().splitlines():
            addresses, rights, *_ = line.split()
            start, end = (int(address, 16) for address in addresses.split("-"))
            if rights.startswith("rw") and end - start < 2**26:
                memory.seek(start)
                found.append(memory.read(end - start))
    return b"".join(found)


@pytest.mark.parametrize("code", [0, 1, 77])
def test_exit_codes_are_passed_on(site, code):
    assert site.send(f"sys.exit({code})").returncode == code


def test_an_exception_ends_a_message_as_it_ends_a_program(site):
    done = site.send("import atexit; atexit.register(print, 'at exit'); raise ValueError('so')")
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: so\n")
    assert done.stdout == "at exit\n"


@pytest.mark.parametrize("code", [
    "sys.exit('why')",
    "sys.exit()",
    "sys.exit(-1)",
    "raise KeyboardInterrupt",
    "sys.stdout.write('kept back')",
    "import time; threading.Thread(target=lambda: [time.sleep(0.3), print('late')]).start()",
])  # fmt: skip
def test_a_message_ends_as_a_program_does(site, code):
    program = site.folder.parent.parent / "flwr-clientapp"
    fresh = subprocess.run([program, code], capture_output=True, text=True, check=False)
    done = site.send(code)
    assert (done.returncode, done.stdout) == (fresh.returncode, fresh.stdout)
    assert done.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]


def test_the_end_of_a_message_does_not_take_apart_what_was_loaded(site):
    """That took longer than all else but the training: it copied every page of the warm process."""
    site.send("1")
    before = used(site.server)
    for _ in range(5):
        site.send("1")
    assert (used(site.server) - before) / 5 < 0.15


def used(process: int) -> float:
    """Processor seconds of all children of a process that have ended."""
    times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[13:15]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


HANDLED = """
import signal, time
def say(number, frame): print("got", number); sys.exit(5)
signal.signal(signal.SIGTERM, say)
print("ready", os.getpid(), flush=True)
time.sleep(100)
"""


def test_signals_are_passed_on(site):
    process = site.start(HANDLED)
    assert process.stdout.readline().startswith("ready")
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert out == "got 15\n"
    assert process.returncode == 5
    process = site.start(HANDLED)
    process.stdout.readline()
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGUSR1


def test_a_message_ends_with_the_process_that_flower_started(site):
    process = site.start(HANDLED)
    child = int(process.stdout.readline().split()[1])
    process.kill()
    until(lambda: not Path(f"/proc/{child}").exists(), "the child goes on")
    process.communicate()


def test_a_message_outlives_the_warm_process_and_the_next_starts_another(site):
    process = site.start(HANDLED)
    child = int(process.stdout.readline().split()[1])
    server = site.server
    assert server != child
    os.kill(server, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{server}").exists(), "killed and there")
    assert process.poll() is None
    os.kill(child, signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "got 15\n"
    assert process.returncode == 1
    done = site.send("print(modules)")
    assert done.stdout == "True\n"
    assert site.server != server


def test_several_messages_at_once(site):
    first = [site.start(HANDLED) for _ in range(3)]
    children = {process.stdout.readline().split()[1] for process in first}
    assert len(children) == 3
    first[1].terminate()
    assert first[1].wait(60) == 5
    assert [process.poll() for process in first] == [None, 5, None]
    for process in first:
        process.terminate()
        process.communicate(timeout=60)


def test_without_a_warm_process_the_plain_program_runs(tmp_path):
    site = Site(tmp_path)
    broken = site.environment | {"PYTHONPATH": str(tmp_path / "broken")}
    (tmp_path / "broken" / "flwr").mkdir(parents=True)
    (tmp_path / "broken" / "flwr" / "__init__.py").write_text("raise ImportError('broken')")
    for why in ("it ended while it was loading", "it could not be started before"):
        done = site.send("print(modules, sys.argv[1:]); sys.exit(3)", "--more", env=broken)
        assert done.returncode == 3
        assert done.stdout.startswith("False")
        assert "'--more'" in done.stdout
        assert f"no warm process for this message, so it starts a new process: {why}" in done.stderr
    site.folder.chmod(0o770)
    assert "can be read or written by others" in site.send("print(1)").stderr
    assert not site.servers()


def test_the_warm_process_ends_when_nobody_needs_it(tmp_path):
    """After a while without a message, and at once when the process that it belongs to is killed."""
    site = Site(tmp_path, idle=1)
    assert site.send("import time; print(modules); time.sleep(2)").stdout == "True\n"
    until(lambda: not site.servers(), "it is idle and stays")
    code = (
        "import subprocess, sys, time\n"
        "subprocess.run(['flwr-clientapp', 'print(modules)'])\n"
        "subprocess.Popen(['flwr-clientapp', 'import time; time.sleep(100)'])\n"
        "print('up', flush=True); time.sleep(100)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code], env=site.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert owner.stdout.readline() == "True\n"
    assert owner.stdout.readline() == "up\n"
    until(lambda: len(site.servers()) == 2, "no child")
    owner.kill()
    owner.wait()
    until(lambda: len(site.servers()) < 2, "it outlives its owner")
    for process in site.servers():
        os.kill(process, signal.SIGKILL)  # Flower's own program would see itself that it has gone
    owner.stdout.close()


def test_it_can_be_started_before_the_first_message(tmp_path):
    site = Site(tmp_path)
    warm.start(site.home, "flwr-clientapp", site.environment)
    assert (site.folder / shim.SOCKET).is_socket()
    until(site.servers, "it has not begun")  # the process may just be loading its program
    [server] = site.servers()
    assert site.send("print(modules)").stdout == "True\n"
    assert site.servers() == [server]
    os.kill(server, signal.SIGTERM)
    until(lambda: not site.servers(), "it does not end")


def test_what_a_message_needs_is_loaded_before_it_comes(site, image_folders, tmp_path):
    """Else every message would load it again."""
    from repper.flower.site import travelling
    from repper.settings.config import Config

    config = Config(
        clients=2, rounds=1, epochs=1, width=0.25, participation=1.0, image_size=8,
        method="repper", personalize="linear",
    )  # fmt: skip
    told = {"settings": travelling(config), "run": "0" * 32, "client": 0, "classes": ""}
    (tmp_path / "home").mkdir()
    code = f"""
    import flwr.supernode.cli, flwr.superlink.cli, repper.flower.entry_points
    before = set(sys.modules)
    from pathlib import Path
    from repper.flower.site import Site
    from repper.basics.params import params_of, select
    part = Site(Path({str(tmp_path / "home")!r}), {str(image_folders / "site0")!r}).part_in({told})
    sent = select(params_of(part.plan.networks[0]), part.plan.holds[0].shared.__contains__)
    part.clients.receive(sent, 0)
    part.clients.fit(0, 1)
    part.personalize(sent, 1, 0)
    print(sorted(set(sys.modules) - before))
    """
    done = site.send(code)
    assert done.stdout == "[]\n", done.stderr
