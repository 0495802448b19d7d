"""What a managed Postgres does its own way: what switches logical decoding on, and how a role comes to replicate."""

import re
from typing import NamedTuple

from lakehouse.servers.database import SourceConnection

PLAIN_DECODING = "run ALTER SYSTEM SET wal_level = logical as a superuser, and restart Postgres"
PLAIN_RIGHT = "run ALTER ROLE {role} REPLICATION as a superuser"


class Provider(NamedTuple):
    """A provider, known by a role that only its servers have."""

    marker: str
    decoding: str
    right: str


PROVIDERS = (
    Provider(
        "rds_superuser",
        "set rds.logical_replication = 1 in the parameter group of RDS, and reboot",
        "run GRANT rds_replication TO {role} as a member of rds_superuser",
    ),
    Provider(
        "cloudsqlsuperuser",
        "set the flag cloudsql.logical_decoding = on, and restart the instance",
        "run ALTER ROLE {role} REPLICATION as a member of cloudsqlsuperuser",
    ),
    Provider(
        "azure_pg_admin",
        "set the server parameter wal_level = logical in Azure, and restart the server",
        "run ALTER ROLE {role} REPLICATION as a member of azure_pg_admin",
    ),
    Provider(
        "neon_superuser",
        "enable logical replication in the settings of the Neon project",
        "make the role in Neon's console, whose roles may replicate, instead of {role}",
    ),
    Provider("supabase_admin", PLAIN_DECODING, "run ALTER ROLE {role} REPLICATION as postgres"),
)
PLAIN = Provider("", PLAIN_DECODING, PLAIN_RIGHT)


TOKENS = (  # how the password looks that a provider's IAM makes, and how long one lasts
    (re.compile(r"[?&]X-Amz-Signature="), "of AWS IAM, which ends 15 minutes after it was made"),
    (re.compile(r"^ya29\."), "of Google Cloud IAM, which ends within an hour"),
    (re.compile(r"^eyJ[\w-]+\.[\w-]+\.[\w-]+$"), "of Microsoft Entra ID, which ends within about an hour"),
)


def token_of(password: str) -> str | None:
    """Whose token a password is, and when it ends; None for any other."""
    return next((whose for form, whose in TOKENS if form.search(password)), None)


def provider_of(connection: SourceConnection) -> Provider:
    """Whose server it is, as far as its roles tell."""
    markers = [provider.marker for provider in PROVIDERS]
    rows = connection.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY (%s)", (markers,)).fetchall()
    found = {name for (name,) in rows}
    return next((provider for provider in PROVIDERS if provider.marker in found), PLAIN)
