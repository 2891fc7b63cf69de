"""Keys, certificates and what is started: a federation's folders, before anything runs."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from repper.basics.errors import RepperError
from repper.engines.processes import KEEP_MEMORY
from repper.flower import homes as deployment
from repper.flower import keys


def test_certificates_are_for_the_names_given_and_signed_by_an_authority_whose_key_is_gone(
    tmp_path,
):
    server = deployment.Server(tmp_path / "home")
    server.prepare("127.0.0.1", 8000, ["hospital.example", "192.0.2.7"])
    ca, own = (
        x509.load_pem_x509_certificate((server.home / name).read_bytes())
        for name in ("ca.crt", "server.pem")
    )
    own.verify_directly_issued_by(ca)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    held = {str(name.value) for name in names}
    assert held == {"hospital.example", "192.0.2.7", "127.0.0.1", "localhost"}
    assert stat.S_IMODE((server.home / "server.key").stat().st_mode) == 0o600
    assert [path.name for path in server.home.iterdir() if path.suffix == ".key"] == ["server.key"]
    before = (server.home / "ca.crt").read_bytes()
    server.prepare("127.0.0.1", 8001, ["hospital.example"])
    assert (server.home / "ca.crt").read_bytes() == before
    with pytest.raises(RepperError, match="is not for other.example: remove ca.crt"):
        server.prepare("127.0.0.1", 8001, ["other.example"])


def test_a_site_has_one_key_that_only_it_can_read(tmp_path):
    line = keys.make_site_key(tmp_path / "home" / "site.key")
    assert keys.make_site_key(tmp_path / "home" / "site.key") == line
    private = load_ssh_private_key((tmp_path / "home" / "site.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert load_ssh_public_key(line.encode()) == private.public_key()
    assert stat.S_IMODE((tmp_path / "home" / "site.key").stat().st_mode) == 0o600


def test_what_is_started_has_tls_and_keys_on_and_installs_and_reports_nothing(tmp_path):
    server = deployment.Server(tmp_path / "home")
    server.prepare("127.0.0.1", 8000, [])
    line = server.command()
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= set(line)
    assert "--insecure" not in line
    node = deployment.node_command(tmp_path, "127.0.0.1:8000", server.home / "ca.crt", 9000)
    assert {"--root-certificates", "--auth-supernode-private-key"} <= set(node)
    assert not {"--insecure", "--allow-runtime-dependency-installation"} & set(node)
    for variables in (server.environment, deployment.node_environment(tmp_path)):
        assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
        assert variables["FLWR_DISABLE_UPDATE_CHECK"] == "1"
        assert variables["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert deployment.node_environment(tmp_path).items() >= KEEP_MEMORY.items()


def test_commands_refuse_what_cannot_be_meant(repper_process, tmp_path):
    run, node = ("federate", "home", "--out", "run"), ("node", "n", "--data", ".")
    refused = {
        ("federate", "nowhere", "--stop"): "is not the home of a server: begin with repper serve",
        run[:2]: "needs --out",
        (*run, "--attach"): "--attach takes no settings",
        ("federate", "home", "--stop", "--min-cohort", 1): "--stop takes no settings",
        (*run, "--min-cohort", 2): "--min-cohort needs --round-timeout",
        (*run, "--min-cohort", 1.5, "--round-timeout", 9): "--min-cohort must be a whole number",
        (*run, "--sites", "a,b,a"): "--sites names a twice",
        ("serve", "new", "--name", "b\u00fccher.example"): "nor a host name in plain letters",
        ("serve", "given"): "given/server.pem is no certificate of a server",
        (*node, "--server", "here", "--ca", "x", "--key-only"): "takes HOST:PORT",
        (*node, "--server", "here:1", "--ca", "x"): "take ca.crt from the server",
        (*node, "--server", "a:1", "--ca", "home/server.json"): "is no certificate",
        ("node", "home", "--server", "a:1", "--data", ".", "--ca", "x", "--key-only"):
            "a home folder of its own",
    }  # fmt: skip
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "server.json").write_text('{"host": "127.0.0.1", "port": 1}')
    (tmp_path / "given").mkdir()
    for name in (keys.CA, keys.CERTIFICATE, keys.KEY):
        (tmp_path / "given" / name).write_text("not a certificate")
    for arguments, why in refused.items():
        done = repper_process(*arguments)
        assert done.returncode == 2, arguments
        assert why in done.stderr


def size_of_database(home):
    return (home / "link.db").stat().st_size


def test_the_database_becomes_smaller_when_messages_are_deleted(tmp_path):
    """Also one that an earlier version has begun; one in use is left alone."""
    server = deployment.Server(tmp_path / "home")
    server.prepare("127.0.0.1", 8000, [])
    for case in ("new", "old"):
        if case == "old":
            (server.home / "link.db").unlink()
        with closing(sqlite3.connect(server.home / "link.db")) as link:
            link.execute("CREATE TABLE stored (content BLOB)")
            link.execute("INSERT INTO stored VALUES (zeroblob(4000000))")
            link.commit()
            assert size_of_database(server.home) > 4_000_000
            if case == "old":
                link.execute("BEGIN EXCLUSIVE")
                server.prepare("127.0.0.1", 8000, [])
                link.rollback()
                server.prepare("127.0.0.1", 8000, [])
            link.execute("DELETE FROM stored")
            link.commit()
        assert size_of_database(server.home) < 100_000
