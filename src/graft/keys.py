"""Certificates and keys: who somebody is for the others of a federation.

The common name of a certificate is the name that its holder has in the federation. A CA that the organisations trust
signs each certificate itself: a chain through further authorities is not followed. What `make_ca` makes is for
trials; certificates of a real CA are read the same.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
import stat
import warnings
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from graft.errors import GraftWarning, InputError
from graft.files import explained, printable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
LONGEST_NAME = 64  # bytes that a common name may have
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
CLOCK_SLACK = timedelta(minutes=10)  # that the clocks of organisations may differ
MOST_DAYS = 36_500
LARGEST_FILE = 2**20  # bytes of a certificate or key that is read at all


class KeyFiles(NamedTuple):
    """Where the three files lie that show who somebody is, and by which others are believed."""

    ca: Path
    certificate: Path
    key: Path


def import_x509() -> ModuleType:
    """Returns the module for certificates, or says how to get it."""
    try:
        from cryptography import x509
    except ImportError as error:
        raise InputError("Certificates need the package cryptography: pip install 'graft-fgl[federation]'.") from error
    return x509


def check_name(name: str) -> str:
    """Returns a name that a server, a party or a peer can have."""
    if len(name) > LONGEST_NAME or not NAME.fullmatch(name):
        raise InputError(
            f"'{printable(name)[:80]}' cannot be the name of a server, a party or a peer: it takes letters, digits, "
            f"'_', '-' and '.', starts with a letter or a digit, and has at most {LONGEST_NAME} of them."
        )
    return name


def make_ca(folder: Path, name: str = "Graft test CA", days: int = 3650) -> Path:
    """Writes a new CA for trials into a folder and returns the path of its certificate."""
    x509 = import_x509()
    from cryptography.hazmat.primitives.asymmetric import ec

    if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable() or not name.strip():
        raise InputError(f"The name of a CA is a printable text of 1 to {LONGEST_NAME} characters.")
    certificate, private = folder / CA_CERTIFICATE, folder / CA_KEY
    check_new([certificate, private])
    key = ec.generate_private_key(ec.SECP256R1())
    start, end = validity(days)
    builder = (
        new_certificate(name, name, key, start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    write_pair(certificate, private, sign(builder, key), key)
    return certificate


def make_party_keys(
    name: str, ca_folder: Path, folder: Path, days: int = 365, addresses: Sequence[str] = ()
) -> KeyFiles:
    """Writes certificate and key of a server, a party or a peer, signed by a CA of `make_ca`, and the CA's beside."""
    x509 = import_x509()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    check_name(name)
    files = key_files(folder, name)
    check_new([files.certificate, files.key])
    issuer, issuer_key = read_ca(ca_folder)
    if files.ca.exists() and read_certificates(files.ca)[0] != issuer:
        raise InputError(f"{files.ca} is the certificate of another CA; give {name} a folder of its own.")
    key = ec.generate_private_key(ec.SECP256R1())
    start, end = validity(days)
    check_dates(issuer, ca_folder / CA_CERTIFICATE)
    builder = (
        new_certificate(name, issuer.subject, key, start, min(end, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(digital_signature=True), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(alternative_names([name, *addresses])), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    write_pair(files.certificate, files.key, sign(builder, issuer_key), key)
    if not files.ca.exists():
        write_new(files.ca, pem(issuer), 0o644)
    return files


def load_keys(folder: Path, name: str, *, listens: bool = False, connects: bool = False) -> KeyFiles:
    """Returns the files of somebody's keys, after all checks that can be made of them alone.

    Certificates of a real CA are accepted as those of `make_party_keys` are: NAME.crt, NAME.key and ca.crt in PEM,
    the certificate signed by the very CA (or one of several) in ca.crt. What the holder means to do with it, listen
    or connect, it has to be issued for.
    """
    import_x509()
    check_name(name)
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder} with the keys of {name}.")
    files = key_files(folder, name)
    certificate = read_certificates(files.certificate)[0]
    authorities = read_certificates(files.ca)
    check_subject(certificate, name, files.certificate)
    check_dates(certificate, files.certificate)
    if read_key(files.key).public_key() != certificate.public_key():
        raise InputError(f"{files.key} is not the key of the certificate {files.certificate}.")
    issuers = [authority for authority in authorities if issued(certificate, authority)]
    if not issuers:
        raise InputError(
            f"{files.certificate} was not signed by the CA in {files.ca}; it has to be signed by that CA itself, as "
            f"further authorities in between are not followed."
        )
    check_dates(issuers[0], files.ca)
    check_purposes(certificate, files.certificate, {"server": listens, "client": connects})
    if files.key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        warnings.warn(f"Others on this machine may read the key {files.key}: chmod 600.", GraftWarning, stacklevel=2)
    return files


def server_name(address: str, keys: KeyFiles, seconds: float = 20.0) -> str:
    """Returns the name in the certificate of whoever listens at an address; it must be of the same CA."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(keys.ca))
    context.load_cert_chain(keys.certificate, keys.key)
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")) as secure,
        ):
            subject: Any = (secure.getpeercert() or {}).get("subject", ())
    except ssl.SSLError as error:
        raise InputError(f"The server at {address} cannot be trusted: {error.reason or error}.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"The server at {address} cannot be reached: {error}.") from error
    names = [value for part in subject for key, value in part if key == "commonName"]
    if len(names) != 1:
        raise InputError(f"The certificate of the server at {address} has {len(names)} common names, not one.")
    return check_name(names[0])


def key_files(folder: Path, name: str) -> KeyFiles:
    """Returns where the files of somebody's keys are looked for."""
    if name == "ca":
        raise InputError("'ca' cannot be the name of a server, a party or a peer: ca.crt is the CA's own.")
    return KeyFiles(folder / CA_CERTIFICATE, folder / f"{name}.crt", folder / f"{name}.key")


def check_subject(certificate: Certificate, name: str, path: Path) -> None:
    from cryptography.x509 import Version
    from cryptography.x509.oid import NameOID

    names = [str(entry.value) for entry in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [name]:
        called = " and ".join(f"'{printable(entry)[:80]}'" for entry in names) or "nobody"
        raise InputError(f"{path} is the certificate of {called}, by its common name, not of '{name}'.")
    if certificate.version is not Version.v3:
        raise InputError(f"{path} is a certificate of X.509 version 1; version 3 is needed.")


def check_dates(certificate: Certificate, path: Path) -> None:
    now = datetime.now(UTC)
    if certificate.not_valid_after_utc <= now:
        raise InputError(f"The certificate {path} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC.")
    if certificate.not_valid_before_utc > now:
        raise InputError(
            f"The certificate {path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on, and this "
            f"machine's clock says {now:%Y-%m-%d %H:%M}."
        )


def check_purposes(certificate: Certificate, path: Path, wanted: dict[str, bool]) -> None:
    """Refuses a certificate that TLS would refuse for what its holder means to do; one without purposes is for all."""
    from cryptography.x509 import ExtendedKeyUsage, ExtensionNotFound
    from cryptography.x509.oid import ExtendedKeyUsageOID

    oids = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}
    try:
        purposes = list(certificate.extensions.get_extension_for_class(ExtendedKeyUsage).value)
    except ExtensionNotFound:
        return
    except ValueError as error:
        raise InputError(f"{path} holds an extension that cannot be read ({error}).") from error
    for side, is_wanted in wanted.items():
        if is_wanted and oids[side] not in purposes:
            raise InputError(f"{path} was not issued for TLS {side} authentication, which is needed here.")


def issued(certificate: Certificate, authority: Certificate) -> bool:
    """Returns whether a CA itself signed a certificate."""
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def read_ca(folder: Path) -> tuple[Certificate, EllipticCurvePrivateKey]:
    """Returns certificate and key of the CA in a folder."""
    for path in (folder / CA_CERTIFICATE, folder / CA_KEY):
        if not path.is_file():
            raise InputError(f"There is no CA in {folder}: {path.name} is missing; make one by: graft keys ca {folder}")
    certificate, key = read_certificates(folder / CA_CERTIFICATE)[0], read_key(folder / CA_KEY)
    if key.public_key() != certificate.public_key():
        raise InputError(f"{folder / CA_KEY} is not the key of the certificate {folder / CA_CERTIFICATE}.")
    return certificate, key


def read_certificates(path: Path) -> list[Certificate]:
    """Returns the certificates of a PEM file, the holder's own first."""
    from cryptography import x509

    content = read_small(path)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise InputError(f"{path} is not a certificate in PEM format.") from error


def read_key(path: Path) -> Any:
    """Returns the private key of a PEM file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = read_small(path)
    try:
        return load_pem_private_key(content, password=None)
    except TypeError as error:
        raise InputError(f"The key {path} is locked by a password, which nobody could type here; unlock it.") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path} is not a private key in PEM format.") from error


def read_small(path: Path) -> bytes:
    with explained(f"{path} cannot be read", InputError):
        if not path.is_file():
            raise InputError(f"There is no file {path}.")
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is too large for a certificate or a key.")
        return path.read_bytes()


def validity(days: int) -> tuple[datetime, datetime]:
    """Returns from when to when a certificate holds; it starts a little earlier, as clocks differ."""
    if not 1 <= days <= MOST_DAYS:
        raise InputError(f"A certificate is valid for 1 to {MOST_DAYS} days, not {days}.")
    now = datetime.now(UTC).replace(microsecond=0)
    return now - CLOCK_SLACK, now + timedelta(days=days)


def new_certificate(
    name: str, issuer: Any, key: EllipticCurvePrivateKey, start: datetime, end: datetime
) -> CertificateBuilder:
    """Returns a certificate without extensions that is not signed yet."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    builder = x509.CertificateBuilder(subject_name=named(name), public_key=key.public_key())
    builder = builder.issuer_name(named(issuer) if isinstance(issuer, str) else issuer)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(end)


def key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> Any:
    from cryptography.x509 import KeyUsage

    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
        **dict.fromkeys(unused, False),
    )


def alternative_names(names: Iterable[str]) -> list[GeneralName]:
    """Returns the hosts that a certificate is for: those given, and this machine for all."""
    from cryptography import x509

    entries: list[GeneralName] = []
    for name in dict.fromkeys([*names, "localhost", "127.0.0.1"]):
        try:
            entries.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            if not NAME.fullmatch(name) or len(name) > 253:
                raise InputError(
                    f"'{printable(name)[:80]}' is not an address: give a host name or an IP address, without a port."
                ) from None
            entries.append(x509.DNSName(name))
    return entries


def sign(builder: CertificateBuilder, key: Any) -> Certificate:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def check_new(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists():
            raise InputError(f"{path} exists already, and keys are never replaced; choose another folder.")


def write_pair(certificate: Path, private: Path, content: Certificate, key: EllipticCurvePrivateKey) -> None:
    """Writes a key that its owner alone may read, and then its certificate."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    with explained(f"{certificate.parent} cannot be made", InputError):
        certificate.parent.mkdir(parents=True, exist_ok=True)
    write_new(private, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    write_new(certificate, pem(content), 0o644)


def write_new(path: Path, content: bytes, mode: int) -> None:
    with explained(f"{path} cannot be written", InputError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
