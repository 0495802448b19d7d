"""Apicurio's Avro converter for Kafka Connect, which writes frames as Confluent's serializers do."""

import hashlib
import subprocess
import tempfile
from pathlib import Path

from lakehouse.settings import Settings
from lakehouse_stack.downloads.artifacts import Artifact
from lakehouse_stack.downloads.download import ivy_command

CLASS = "io.apicurio.registry.utils.converter.AvroConverter"
JARS = """
io.apicurio:apicurio-common-rest-client-common:0.1.18.Final
    7e73da0b5bd1cff35ff24f2172d41b79ef55362dbbd6104c5d5108ffed87dcd7
io.apicurio:apicurio-common-rest-client-jdk:0.1.18.Final
    ef1feac9226e31722444f608ad5d998e0d0753ed886a6decad19effe23d9b734
io.apicurio:apicurio-registry-client:2.6.2.Final
    e742130246ddc2f51d17e9b893de7be90e4f6c916c4a53a3fd171916ac4f1026
io.apicurio:apicurio-registry-common:2.6.13.Final
    1f08d5cfdf183be38f53df9e4ed72cb11f7923405ba7f2b3043f334fe6c732df
io.apicurio:apicurio-registry-schema-resolver:2.6.13.Final
    171a974f39df803e0084c962b80b58a2e40645cb08e8297bdbbe34c2ef61a3c1
io.apicurio:apicurio-registry-serde-common:2.6.13.Final
    5f5e0e834699516be7b39ee6cdefa138a417758bbf66e28950158a7232014e76
io.apicurio:apicurio-registry-serdes-avro-serde:2.6.2.Final
    28994ca7db9e898e32c46cc2df8a3b0bc41a971ef1b4e593f838ee35495df566
io.apicurio:apicurio-registry-utils-converter:2.6.13.Final
    95392390745e31941e3f8e3565f883a2c31b9fd1d38eb0e22aac7721dd73508a
org.apache.avro:avro:1.12.0
    1f5fbfff9b7427d6832cc3031a3c81413d3e21d9e2551847d9231c28493f9492
"""  # what it needs beside the jars of Kafka Connect


def converter_jars(settings: Settings) -> Path:
    """The folder with the converter and what it needs, downloaded once."""
    target = settings.cache / "peers" / "apicurio-converter-2.6.13"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    parts = JARS.split()
    wanted = tuple(_artifact(*pair) for pair in zip(parts[::2], parts[1::2], strict=True))
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        work = Path(name)
        done = subprocess.run(ivy_command(work, wanted), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-500:]
        (work / "jars").mkdir()
        for artifact in wanted:
            [jar] = work.glob(f"cache/**/{artifact.file_name}")
            assert hashlib.sha256(jar.read_bytes()).hexdigest() == artifact.sha256, artifact.file_name
            jar.rename(work / "jars" / artifact.file_name)
        (work / "jars").rename(target)
    return target


def _artifact(module: str, sha256: str) -> Artifact:
    org, name, version = module.split(":")
    return Artifact(org=org, name=name, version=version, ext="jar", sha256=sha256, size=0, licence="Apache-2.0")


def avro_options(registry: str) -> dict[str, str]:
    """Of a connector whose messages are Avro by the schemas of a registry, whose address is `…/apis/ccompat/v7`."""
    api = registry.partition("/apis/")[0] + "/apis/registry/v2"
    found = {"schema.name.adjustment.mode": "avro", "field.name.adjustment.mode": "avro"}
    for part in ("key.converter", "value.converter"):
        found |= {
            part: CLASS, f"{part}.apicurio.registry.url": api, f"{part}.apicurio.registry.auto-register": "true",
            f"{part}.apicurio.registry.find-latest": "false", f"{part}.apicurio.registry.as-confluent": "true",
            f"{part}.apicurio.registry.use-id": "contentId", f"{part}.apicurio.registry.headers.enabled": "false",
        }  # fmt: skip
    return found
