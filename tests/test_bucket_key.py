"""What a stolen key of the embedded object store reaches: the bucket of the lake, and no other."""

from collections.abc import Callable
from typing import Any

import pytest
from pyarrow import fs

from lakehouse.settings import Settings
from tests.warehouse import hand_to_store

pytestmark = pytest.mark.stack


@pytest.fixture
def stolen(settings: Settings) -> fs.S3FileSystem:
    """A client with the lake's key, and all rights that its library asks for."""
    s3 = settings.s3
    assert s3.access_key is not None and s3.secret_key is not None
    return fs.S3FileSystem(
        access_key=s3.access_key.get_secret_value(), secret_key=s3.secret_key.get_secret_value(),
        endpoint_override=s3.endpoint, region=s3.region, allow_bucket_creation=True, allow_bucket_deletion=True,
    )  # fmt: skip


@pytest.fixture
def another(settings: Settings) -> str:
    """A bucket of somebody else, in the same store."""
    bucket = settings.home / "data" / "s3" / "another"
    bucket.mkdir(exist_ok=True)
    (bucket / "secret").write_text("of somebody else")
    hand_to_store(settings, bucket)
    return bucket.name


def test_the_lakes_key_reaches_the_lakes_bucket_alone(stolen: fs.S3FileSystem, another: str) -> None:
    """It read, wrote and deleted every bucket of the store, and made new ones."""

    def write(path: str) -> None:
        with stolen.open_output_stream(path) as file:
            file.write(b"x")

    write("warehouse/stolen/x")
    stolen.delete_file("warehouse/stolen/x")
    attacks: dict[str, Callable[[], Any]] = {
        "read": lambda: stolen.open_input_stream(f"{another}/secret").read(),
        "copy": lambda: stolen.copy_file(f"{another}/secret", "warehouse/stolen/secret"),
        "list": lambda: stolen.get_file_info(fs.FileSelector(another)),
        "list buckets": lambda: stolen.get_file_info(fs.FileSelector("")),
        "write": lambda: write(f"{another}/mine"),
        "delete": lambda: stolen.delete_dir(another),
        "make": lambda: stolen.create_dir("mine"),
    }
    for name, attack in attacks.items():
        with pytest.raises(OSError, match=r"(?i)denied|forbidden"):
            attack()
            pytest.fail(f"{name} succeeded")
