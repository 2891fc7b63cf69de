"""The commands of a federation over machines: `serve`, `node` and `federate`.

They make what Flower needs, show Flower's commands, and start them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repper.basics.errors import RepperError, needs, unknown
from repper.cli.arguments import JSON, AddCommand, add_settings, path, settings
from repper.cli.interrupt import Loading
from repper.cli.show import say, tell
from repper.flower import PREFIX
from repper.flower.allowed import FEDERATE_SETTINGS
from repper.methods import METHODS
from repper.settings.config import OPTIONS, Config

if TYPE_CHECKING:
    from repper.flower.homes import Server


def add_commands(add: AddCommand) -> None:
    serve = add("serve", "run the server of a federation over machines, on Flower", _serve)
    serve.add_argument(
        "home", type=path, metavar="HOME", help="folder for the server's keys and settings"
    )
    serve.add_argument(
        "--host", default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1, behind a proxy; docs/deploy.md says why)",
    )  # fmt: skip
    serve.add_argument("--port", default="8000", help="port to listen on (default: 8000)")
    serve.add_argument(
        "--name", action="append", default=[], metavar="NAME",
        help="host name or address that sites use for this server, for its certificate; repeatable",
    )  # fmt: skip
    what = serve.add_mutually_exclusive_group()
    what.add_argument("--admit", metavar="SITE=KEY.pub", help="admit a site by its public key")
    what.add_argument("--list", action="store_true", help="list sites and their status")
    what.add_argument("--revoke", metavar="SITE", help="revoke a site's key")

    node = add("node", "run a site of a federation: its images stay where they are", _node)
    node.add_argument(
        "home",
        type=path,
        metavar="HOME",
        help="folder for the site's key, heads and private parameters",
    )
    node.add_argument("--server", required=True, metavar="HOST:PORT", help="address of the server")
    node.add_argument(
        "--data", required=True, type=path, metavar="DIR", help="folder of images, <class>/*"
    )
    node.add_argument("--ca", required=True, type=path, metavar="FILE", help="the server's ca.crt")
    node.add_argument(
        "--share-scores", action="store_true", help="report the site's accuracy to the server"
    )
    node.add_argument(
        "--no-common-head", action="store_true",
        help="take no part in the stage of --personalize common, and fit a linear head locally",
    )  # fmt: skip
    node.add_argument(
        "--skip-unreadable", action="store_true", help=OPTIONS["skip_unreadable"].help
    )
    node.add_argument("--device", default="auto", metavar="X", help=OPTIONS["device"].help)
    node.add_argument(
        "--key-only", action="store_true", help="create and print the site's key, and exit"
    )

    federate = add("federate", "start a federation with the connected sites", _federate)
    federate.add_argument(
        "home", type=path, metavar="HOME", help="the server's folder, as given to repper serve"
    )
    federate.add_argument(
        "--sites",
        default="",
        metavar="A,B,...",
        help="sites that take part (default: the first --clients sites that are connected)",
    )
    federate.add_argument(
        "--classes", default="", metavar="A,B,...",
        help="names of all classes of all sites; required by every method except repper",
    )  # fmt: skip
    federate.add_argument(
        "--round-timeout", default="0", metavar="S",
        help="print every S seconds which sites a round is still waiting for (default: after 300, "
        "600, 1200 and so on)",
    )  # fmt: skip
    federate.add_argument(
        "--min-cohort", default="0", metavar="N",
        help="minimum number of answers to continue a round after --round-timeout (default: wait "
        "for all)",
    )  # fmt: skip
    what = federate.add_mutually_exclusive_group()
    what.add_argument("--attach", action="store_true", help="watch the running federation")
    what.add_argument("--stop", action="store_true", help="stop the running federation")
    federate.add_argument("--resume", action="store_true", help="resume what is in the folder")
    federate.add_argument("--overwrite", action="store_true", help="replace what is in the folder")
    federate.add_argument(
        "--config", type=path, metavar="FILE", help="TOML file of settings; flags override it"
    )
    federate.add_argument("--json", action="store_true", help=JSON)
    add_settings(
        federate, list(FEDERATE_SETTINGS),
        defaults={"clients": "as many as --sites names; without it 20", "out": "none: give one"},
        choices={"method": [name for name in METHODS if name != "central"]},
    )  # fmt: skip


def _refuse_windows(command: str) -> None:
    if sys.platform == "win32":
        raise RepperError(
            f"{command} does not work on Windows: use Linux, macOS, or Windows' Linux subsystem"
        )


def _serve(options: argparse.Namespace) -> int:
    _refuse_windows("repper serve")
    with Loading(), needs("train,flower", "repper serve"):
        from repper.flower import warm
        from repper.flower.homes import Server
    server = Server(options.home.absolute())
    if options.admit or options.revoke or options.list:
        server.check()
    if options.admit:
        name, equals, key = options.admit.partition("=")
        if not equals or not name:
            raise RepperError(f"--admit takes SITE=KEY.pub, got {options.admit!r}")
        server.admit(name, path(key), tell)
        say(f"{name} is admitted.")
    elif options.revoke:
        server.revoke(options.revoke, tell)
        say(f"The key of {options.revoke} is revoked.")
    elif options.list:
        for site in server.sites(tell):
            since = f" since {site.since}" if site.since else ""
            say(f"{site.name:30} {site.status}{since}")
    else:
        server.prepare(options.host, _port(options.port), options.name)
        if options.host not in ("127.0.0.1", "::1", "localhost"):
            tell(
                f"Careful: whoever can reach {options.host}:{options.port} can start any program "
                f"on this server and at every site. docs/deploy.md shows how to let in sites only."
            )
        say(f"Give this file to every site: {server.home / 'ca.crt'}")
        warm.start(server.home, warm.SERVER_APP, server.environment)
        _become(server.command(), server.environment)
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise RepperError(f"--port must be 1 to 65535, got {text!r}")
    return int(text)


def _become(
    command: list[str], environment: dict[str, str], flowers: list[str] | None = None
) -> None:
    """Replace this process by another program, which then gets its signals; print the command."""
    from repper.flower.programs import shown

    tell(shown(flowers or command, environment))
    sys.stdout.flush()
    os.execve(command[0], command, environment)


def _node(options: argparse.Namespace) -> int:
    _refuse_windows("repper node")
    with Loading(), needs("train,flower", "repper node"):
        from repper.basics.hardware import resolve_device
        from repper.flower import warm
        from repper.flower.homes import node_command, node_environment
        from repper.flower.keys import check_certificate, make_site_key
        from repper.flower.site import SETTINGS, Site
        from repper.flower.watched import watched
    home, data, ca = (given.absolute() for given in (options.home, options.data, options.ca))
    if not data.is_dir():
        raise RepperError(f"the folder of images {data} does not exist")
    if not options.key_only:
        check_certificate(ca)
    host, _, port_of_server = options.server.rpartition(":")
    if not host or not port_of_server.isdecimal():
        raise RepperError(f"--server takes HOST:PORT, got {options.server!r}")
    if (home / "server.json").exists() or (home / "config.toml").exists() or home == data:
        raise RepperError(
            f"{home} is a server's home, a run folder or the folder of images: give this site a "
            f"home folder of its own"
        )
    resolve_device(options.device)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    public = make_site_key(home / "site.key")
    limits = Site.open(home).limits if (home / SETTINGS).is_file() else {}
    Site(
        home, str(data), share_scores=options.share_scores,
        share_head=not options.no_common_head,
        skip_unreadable=options.skip_unreadable, device=options.device, limits=limits,
    ).save()  # fmt: skip
    say(
        f"The public key of this site; give it to the operator of the server ({home / 'site.pub'}):"
    )
    for line in public.splitlines():
        say(line)
    if options.key_only:
        return 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    warm.prepare(home, warm.CLIENT_APP, warm.IDLE)
    command, environment = node_command(home, options.server, ca, port), node_environment(home)
    _become(watched(home, options.server, ca, command), environment, command)
    return 0


def _federate(options: argparse.Namespace) -> int:
    _refuse_windows("repper federate")
    with Loading(), needs("train,flower", "repper federate"):
        from repper.cli.unused_settings import say_what_is_idle
        from repper.flower.homes import Server
    server = Server(options.home.absolute())
    server.check()
    given = settings(options, FEDERATE_SETTINGS)
    if options.attach or options.stop:
        _refuse_settings(options, given)
    if options.stop:
        server.stop(tell)
        say("Stopped; the same command with --resume continues it.")
        return 0
    if not options.attach:
        config = Config(**given)
        if config.out is None:
            raise RepperError("a federation needs --out, a folder to write to")
        content = _run_config(options, config, given)
        say_what_is_idle(given, [config])
        known = [site.name for site in server.sites(tell)]
        for name in filter(None, content["sites"].split(",")):
            if name not in known:
                raise unknown("site", name, known)
        server.start(content, tell)
    return _watch(server, options)


def _refuse_settings(options: argparse.Namespace, given: dict[str, Any]) -> None:
    """Refuse settings with --attach and --stop: the running federation has its own."""
    own = (options.sites, options.classes, options.resume, options.overwrite)
    if given or any(own) or options.round_timeout != "0" or options.min_cohort != "0":
        flag = "--attach" if options.attach else "--stop"
        raise RepperError(f"{flag} takes no settings: the running federation has its own")


def _run_config(
    options: argparse.Namespace, config: Config, given: dict[str, Any]
) -> dict[str, Any]:
    """The configuration that Flower passes to the server app."""
    timeout = _number(options.round_timeout, "--round-timeout")
    least = _number(options.min_cohort, "--min-cohort")
    if least != int(least):
        raise RepperError(f"--min-cohort must be a whole number, got {options.min_cohort}")
    sites, classes = _names(options.sites, "--sites"), _names(options.classes, "--classes")
    if sites and "clients" not in given:
        given = given | {"clients": len(sites)}
    elif sites and config.clients != len(sites):
        raise RepperError(f"--sites names {len(sites)} sites, but --clients is {config.clients}")
    if least and not timeout:
        raise RepperError(
            "--min-cohort needs --round-timeout, the time after which a round continues with "
            "fewer sites"
        )
    content = {OPTIONS[name].key: value for name, value in given.items() if value is not None}
    return content | {
        "sites": ",".join(sites), "classes": ",".join(classes),
        "round-timeout": timeout, "min-cohort": int(least), "resume": options.resume,
        "overwrite": options.overwrite, "out": str(Path(str(config.out)).absolute()),
    } | ({"init": str(Path(config.init).absolute())} if config.init else {})  # fmt: skip


def _names(text: str, flag: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if twice := [name for name in names if names.count(name) > 1]:
        raise RepperError(f"{flag} names {twice[0]} twice")
    return names


def _number(text: str, flag: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise RepperError(f"{flag} must be a number of at least 0, got {text!r}")
    return value


def _watch(server: Server, options: argparse.Namespace) -> int:
    """Show the server app's events until it ends; Ctrl-C only ends the watching."""
    from repper.cli.watch import Watch

    last: dict[str, Any] = {"event": "nothing"}
    try:
        watch = Watch()
        # To the end of the log, not of the news: until then Flower's run goes on, and another
        # federation cannot begin.
        for last in _events(server):
            watch.show(last)
    except KeyboardInterrupt:
        tell(
            f"No longer watching; the federation continues. repper federate {options.home} "
            f"--attach watches it again, --stop stops it."
        )
        return 130
    if last["event"] == "over":
        watch.result(last, stderr=options.json)
        if options.json:
            say(json.dumps(last))
        return 0
    if last["event"] == "error":
        raise RepperError(last["text"])
    raise RepperError(
        "the federation ended without a result: see the log of repper serve; the same command "
        "with --resume continues it"
    )


def _events(server: Server) -> Iterator[dict[str, Any]]:
    log = server.log(tell)
    try:
        for line in log.stdout or ():
            _, prefix, text = line.partition(PREFIX)
            try:
                event = json.loads(text) if prefix else None
            except ValueError:
                continue  # somebody else's line that looks like ours
            if event is not None:
                yield event
    finally:
        log.terminate()
        log.wait()
