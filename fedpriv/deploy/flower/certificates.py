"""Certificates and keys of a deployment: its own authority, the server's certificate, and a key pair for each client."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedpriv.errors import UsageError

AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
"""Validity of certificates."""
_CURVE = ec.SECP384R1()


def make_authority(certificate: Path, key: Path) -> None:
    """Write the certificate and key of a new authority."""
    private = ec.generate_private_key(_CURVE)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedpriv authority")])
    builder = _builder(name, name, private.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
    write_secret(key, _pem(private))
    certificate.write_bytes(builder.sign(private, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))


def make_server_certificate(authority: Path, authority_key: Path, hosts: Sequence[str], certificate: Path, key: Path) -> None:
    """Write a certificate, signed by an authority, for a server with these names or addresses, and its key."""
    issuer = x509.load_pem_x509_certificate(authority.read_bytes())
    signing = serialization.load_pem_private_key(authority_key.read_bytes(), None)
    if not isinstance(signing, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{authority_key} is not a key that fedpriv made")
    private = ec.generate_private_key(_CURVE)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedpriv server")])
    builder = _builder(name, issuer.subject, private.public_key(), SERVER_DAYS)
    builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    builder = builder.add_extension(issued_by, critical=False)  # required by Python 3.13 and later
    builder = builder.add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    write_secret(key, _pem(private))
    certificate.write_bytes(builder.sign(signing, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))


def make_client_key(key: Path) -> None:
    """Write a client's private key, and its public key to ``<key>.pub``."""
    private = ec.generate_private_key(_CURVE)
    openssh = serialization.PrivateFormat.OpenSSH
    write_secret(key, private.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption()))
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    key.with_name(key.name + ".pub").write_bytes(public + b"\n")


def check_authority(certificate: Path, key: Path) -> None:
    """Raise :class:`UsageError` if an authority cannot sign: its key is missing, or its own certificate has expired."""
    if not key.exists():
        raise UsageError(f"{key} does not exist; it signs the server's certificate, so put it back")
    until = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    if datetime.datetime.now(datetime.UTC) > until:
        raise UsageError(f"the authority {certificate} expired on {until:%Y-%m-%d}; `fedpriv deploy init` makes a new deployment")


def check_server_certificate(certificate: Path, host: str) -> None:
    """Raise :class:`UsageError` if a server's certificate has expired, is not valid yet, or is for another host."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise UsageError(f"{certificate} is no certificate that can be read: {error}") from None
    now = datetime.datetime.now(datetime.UTC)
    if now > parsed.not_valid_after_utc:
        raise UsageError(
            f"the certificate {certificate} expired on {parsed.not_valid_after_utc:%Y-%m-%d}; "
            f"`fedpriv deploy renew {certificate.parent.parent}` makes a new one"
        )
    if now < parsed.not_valid_before_utc:
        since = f"{parsed.not_valid_before_utc:%Y-%m-%d %H:%M}"
        raise UsageError(f"the certificate {certificate} is valid from {since} UTC on; is this machine's clock right?")
    known = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    if host not in known:
        raise UsageError(f"the certificate {certificate} is for {', '.join(sorted(known))}, not for {host}")


def check_handshake(certificate: Path, key: Path, authority: Path, host: str) -> None:
    """Do a TLS handshake in memory, between a server with a certificate and key and a client that trusts an authority.

    Raises:
        UsageError: the key belongs to another certificate, or the client does not accept the certificate for the host.
    """
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server = context.wrap_bio(inward, outward, server_side=True)
        client = ssl.create_default_context(cafile=str(authority)).wrap_bio(outward, inward, server_hostname=host)
        for side in (client, server, client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error
        raise UsageError(f"the certificate {certificate} does not hold for {host} by {authority}: {why}") from None


def readable_by_others(*secrets: Path) -> list[Path]:
    """The files that other users of this machine may read, of those that exist."""
    return [path for path in secrets if path.exists() and path.stat().st_mode & 0o044]


def write_secret(path: Path, data: bytes) -> None:
    """Write a file with mode 600."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)


def _builder(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
    return builder.not_valid_after(now + datetime.timedelta(days=days))


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signs_certificates, crl_sign=signs_certificates, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    pkcs8 = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption())
