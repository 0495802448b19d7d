"""What to paste into other engines so that they read the lake (`lakehouse env --for CLIENT`)."""

from collections.abc import Mapping

from lakehouse.errors import LakehouseError
from lakehouse.settings import Settings
from lakehouse.text.sql import literal

PYICEBERG = """\
from pyiceberg.catalog.rest import RestCatalog
lake = RestCatalog("lake", uri={uri!r}, warehouse={warehouse!r}, credential={credential!r},
  **{{"oauth2-server-uri": "{uri}/v1/oauth/tokens"}})
"""
DUCKDB = """\
INSTALL iceberg; LOAD iceberg;
CREATE SECRET lake (TYPE iceberg, CLIENT_ID {login}, CLIENT_SECRET {password},
  OAUTH2_SERVER_URI '{uri}/v1/oauth/tokens');
ATTACH '{warehouse}' AS lake (TYPE iceberg, SECRET lake, ENDPOINT '{uri}');
"""
SPARK = """\
spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions
spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog
spark.sql.catalog.lake.type=rest
spark.sql.catalog.lake.uri={uri}
spark.sql.catalog.lake.warehouse={warehouse}
spark.sql.catalog.lake.credential={credential}
spark.sql.catalog.lake.io-impl=org.apache.iceberg.aws.s3.S3FileIO
spark.sql.catalog.lake.cache-enabled=false
"""
TRINO = """\
connector.name=iceberg
iceberg.catalog.type=rest
iceberg.rest-catalog.uri={uri}
iceberg.rest-catalog.warehouse={warehouse}
iceberg.rest-catalog.security=OAUTH2
iceberg.rest-catalog.oauth2.credential={credential}
iceberg.rest-catalog.vended-credentials-enabled=true
fs.native-s3.enabled=true
s3.endpoint={uri}
s3.region={region}
s3.path-style-access=true
"""
CLICKHOUSE = """\
SET allow_experimental_database_iceberg = 1;
CREATE DATABASE lake ENGINE = DataLakeCatalog('{uri}') SETTINGS catalog_type = 'rest', warehouse = '{warehouse}',
  catalog_credential = {quoted_credential}, oauth_server_uri = '{uri}/v1/oauth/tokens';
"""
CLIENTS: Mapping[str, str] = {
    "clickhouse": CLICKHOUSE,
    "duckdb": DUCKDB,
    "pyiceberg": PYICEBERG,
    "spark": SPARK,
    "trino": TRINO,
}


def client_text(settings: Settings, client: str) -> str:
    """The text for one client, with the reader's login. Raises LakehouseError for another client."""
    if client not in CLIENTS:
        raise LakehouseError(f"there is no text for {client!r}: choose one of {', '.join((*CLIENTS, 'dbt'))}")
    login = settings.trino.login("reader")
    password = login.password.get_secret_value() if login.password else ""
    return CLIENTS[client].format(
        uri=settings.serve.address(), warehouse=settings.catalog_name, region=settings.s3.region,
        login=literal(login.user), password=literal(password), credential=f"{login.user}:{password}",
        quoted_credential=literal(f"{login.user}:{password}"),
    )  # fmt: skip
