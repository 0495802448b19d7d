"""Certificate authorities for Java, which reads no PEM files: as a PKCS12 trust store."""

import re
import warnings
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from cryptography.utils import CryptographyDeprecationWarning

TRUST_STORE_PASSWORD = "changeit"  # certificates are public, but Java insists on a password


def write_trust_store(pem: str, target: Path) -> Path | None:
    """Writes the PEM's certificates as a trust store; None if it has none."""
    certificates = _certificates(pem)
    if not certificates:
        return None
    entries = [pkcs12.PKCS12Certificate(c, f"ca-{n}".encode()) for n, c in enumerate(certificates)]
    encryption = BestAvailableEncryption(TRUST_STORE_PASSWORD.encode())
    target.write_bytes(pkcs12.serialize_java_truststore(entries, encryption))
    return target


def _certificates(pem: str) -> list[x509.Certificate]:
    """The valid certificates of a bundle; one malformed entry must not be in the way of the others."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        for block in re.findall(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", pem, re.DOTALL):
            with suppress(ValueError):
                found.append(x509.load_pem_x509_certificate(block.encode()))
    return found
