"""Downloads the pinned artifacts into the cache that all homes share.

Ivy, which comes with PySpark, resolves them from public repositories. It downloads to a private folder. A file is moved
to the cache only if its SHA-256 matches, so an interrupted or corrupted download is never used and complete files are
kept.
"""

import fcntl
import hashlib
import re
import shutil
import signal
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.servers.trust import TRUST_STORE_PASSWORD
from lakehouse.settings import Settings
from lakehouse_stack.downloads.artifacts import Artifact, missing, read_manifest
from lakehouse_stack.downloads.java import (
    install_private_java,
    proxy_options,
    server_java,
    spark_java_missing,
    trust_store,
)
from lakehouse_stack.processes.process import stop, working_in
from lakehouse_stack.templates.render import render

Progress = Callable[[str, int, int], None]  # current step, bytes done, total bytes
REMEDY = "check the network (HTTPS_PROXY, SSL_CERT_FILE) and run the command again; what is complete is kept"


def ensure_artifacts(
    settings: Settings, progress: Progress = lambda *_: None, artifacts: tuple[Artifact, ...] | None = None
) -> None:
    """Downloads, verifies and unpacks the missing `artifacts` (default: all); needs no network if none is missing.

    Raises LakehouseError for errors of network, disk or checksum.
    """
    artifacts = read_manifest() if artifacts is None else artifacts
    if not missing(artifacts, settings.artifacts) and not spark_java_missing(settings):
        return
    try:
        settings.artifacts.mkdir(parents=True, exist_ok=True)
        with _locked(settings.artifacts / "lock", progress):
            _fetch(missing(artifacts, settings.artifacts), settings.artifacts, progress)
            if spark_java_missing(settings):
                progress("installing Java 21 for Spark", 0, 0)
                install_private_java(settings)
    except OSError as error:
        raise LakehouseError(
            f"the downloads cannot be stored in {settings.artifacts}: {error.strerror or error}; "
            "make room (2 GB) or set LAKEHOUSE_CACHE to another folder"
        ) from None


def ivy_command(work: Path, wanted: tuple[Artifact, ...]) -> list[str]:
    """Writes Ivy's configuration to `work`; returns the command that downloads to `work`/cache."""
    modules = [list(files) for _, files in groupby(sorted(wanted, key=_module), _module)]  # Ivy takes each module once
    (work / "ivy.xml").write_text(render("ivy.xml.j2", modules=modules))
    (work / "ivysettings.xml").write_text(render("ivysettings.xml.j2"))
    return ivy_program(work)


def _module(artifact: Artifact) -> tuple[str, str, str]:
    return artifact.org, artifact.name, artifact.version


def ivy_program(work: Path) -> list[str]:
    """The command that runs Ivy on `work`/ivy.xml and ivysettings.xml with the system's certificate authorities."""
    command = [str(server_java()), "-Xmx256m", f"-Divy.default.ivy.user.dir={work}", *proxy_options()]
    store = trust_store(work / "truststore.p12")
    if store is not None:
        command += [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=PKCS12"]
        command += [f"-Djavax.net.ssl.trustStorePassword={TRUST_STORE_PASSWORD}"]
    command += ["-cp", str(_ivy_jar()), "org.apache.ivy.Main"]
    command += ["-settings", str(work / "ivysettings.xml"), "-ivy", str(work / "ivy.xml")]
    return [*command, "-cache", str(work / "cache")]


def _fetch(wanted: tuple[Artifact, ...], root: Path, progress: Progress) -> None:
    work = root / "download"
    stop(working_in(work, "java"), signal.SIGKILL, 5.0)  # Ivy of a killed `up` may still write there
    wanted = tuple(artifact for artifact in wanted if not _install(artifact, work, root))
    shutil.rmtree(work, ignore_errors=True)
    if not wanted:
        return
    work.mkdir()
    total = sum(artifact.size for artifact in wanted)
    if (free := shutil.disk_usage(root).free) < 3 * total:
        raise OSError(f"{free >> 20} MB free, {3 * total >> 20} MB needed")
    _run_ivy(ivy_command(work, wanted), work, total, progress)
    for artifact in sorted(wanted, key=lambda each: bool(each.unpack_to)):  # what is said on one line comes together
        progress(f"verifying and unpacking {artifact.name}" if artifact.unpack_to else "verifying", total, total)
        if not _install(artifact, work, root):
            raise LakehouseError(f"{artifact.file_name} arrived with another size or SHA-256 than pinned; {REMEDY}")
    shutil.rmtree(work, ignore_errors=True)


def _run_ivy(command: list[str], work: Path, total: int, progress: Progress) -> None:
    log = work / "ivy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=work)
    try:
        while process.poll() is None:
            progress("downloading", min(_bytes_in(work / "cache"), total), total)
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise LakehouseError(f"the download failed ({_reason(log)}); {REMEDY}")


def _reason(log: Path) -> str:
    """The most informative of the hundred lines of Ivy's log."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    patterns = (r"No space left.*", r"Host \S+ not found", r"\w+Exception: [^)]*", r"(Unauthorized|Forbidden|proxy).*")
    found = (re.search(pattern, line) for pattern in patterns for line in lines)
    return next((match.group(0) for match in found if match), f"see {log}")


def _install(artifact: Artifact, work: Path, root: Path) -> bool:
    """Moves a complete download to the cache; False if `work` contains none."""
    file = next((f for f in work.glob(f"cache/**/{artifact.file_name}") if f.is_file()), None)
    if file is None or file.stat().st_size != artifact.size or _sha256(file) != artifact.sha256:
        return False
    target = root / artifact.target
    target.parent.mkdir(parents=True, exist_ok=True)
    if artifact.unpack_to:
        staging = target.with_name(target.name + ".part")
        shutil.rmtree(staging, ignore_errors=True)
        _unpack(file, staging)
        (top,) = staging.iterdir()  # each archive contains one folder named after its version
        top.rename(target)
        staging.rmdir()
        file.unlink()
    else:
        file.replace(target)
    return True


def _unpack(archive: Path, target: Path) -> None:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(target)
    else:
        with tarfile.open(archive) as opened_tar:
            # the checksum matched, so the content is trusted; Python before 3.11.4 has no filters
            opened_tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            opened_tar.extractall(target)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.glob("*/*/*/*"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:  # Ivy renames its partial files
            continue
    return total


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return next(Path(spec.origin).parent.glob("jars/ivy-*.jar"))


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another download into the same cache", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
