"""The certificate of the embedded Trino, signed by an authority whose key is discarded afterwards."""

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lakehouse.files.private_files import write_private, write_shared

VALID = timedelta(days=5 * 365)
RENEWED_BEFORE = timedelta(days=180)
CLOCK_SKEW = timedelta(days=1)


def ensure_certificate(server: Path, authority: Path, names: Iterable[str]) -> None:
    """Writes the server's key and certificate and the authority's certificate, unless they are valid for long."""
    if server.exists() and authority.exists() and _is_valid_for_long(authority.read_bytes()):
        return
    server_pem, authority_pem = make_certificate(tuple(names), datetime.now(UTC))
    write_shared(server, server_pem)
    write_private(authority, authority_pem)
    authority.chmod(0o644)


def make_certificate(names: tuple[str, ...], now: datetime) -> tuple[str, str]:
    """PEM of the server (key and certificate, valid for these hosts and addresses) and of the signing authority."""
    signing, serving = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = _name(f"lakehouse {now:%Y-%m-%d}")
    authority = (
        _builder(issuer, issuer, signing.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(signing.public_key()), critical=False)
        .sign(signing, hashes.SHA256())
    )
    server = (
        _builder(_name(names[0]), issuer, serving.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(serving.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .sign(signing, hashes.SHA256())
    )
    key = serving.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return key + _pem(server), _pem(authority)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=False, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _is_valid_for_long(pem: bytes) -> bool:
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc > datetime.now(UTC) + RENEWED_BEFORE
