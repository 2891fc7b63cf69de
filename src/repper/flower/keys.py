"""Certificates that identify a server, and keys that identify its sites."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from repper.basics.errors import RepperError
from repper.basics.files import write_atomically

CA, CERTIFICATE, KEY = "ca.crt", "server.pem", "server.key"
VALID = datetime.timedelta(days=825)
BACKDATED = datetime.timedelta(hours=1)
"""So that a site whose clock is late gets an error about its clock, not about the certificate."""


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
            .not_valid_before(now - BACKDATED)
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
    """Refuse a file that is not a certificate."""
    try:
        x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise RepperError(f"there is no file {path}: take {CA} from the server's home") from error
    except ValueError as error:
        raise RepperError(f"{path} is no certificate: take {CA} from the server's home") from error


def names_in(certificate: Path) -> set[str]:
    """The names and addresses that a server's certificate is for."""
    try:
        read = x509.load_pem_x509_certificate(certificate.read_bytes())
        found = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise RepperError(
            f"{certificate} is no certificate of a server: it names no host that it is for"
        ) from error
    return {str(name.value) for name in found}


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
