"""Deletes up to a thousand objects per request with S3's DeleteObjects, which PyArrow and PyIceberg do not use.

If the settings contain no keys (an instance role or a profile, which only Arrow resolves), or the warehouse is a
directory, objects are deleted one by one, several in parallel; Arrow needs three requests for each.

Clients change some names: obstore reads `#` as `%23` and `/a` as `a`, PyIceberg `a#b` as `a`, Arrow `a/../b` as `b`.
Only the exact key is ever sent to the store, because the other key may be in use.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from lakehouse.catalog import S3_CA
from lakehouse.catalog.locations import SPELLINGS, parse_location
from lakehouse.catalog.objects import sync_objects

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Store
    from pyiceberg.io import FileIO
    from pyiceberg.io.pyarrow import PyArrowFileIO

BATCH = 1_000  # the limit of S3
SEVERAL = 16
PATIENCE = timedelta(seconds=60)
_REWRITTEN = re.compile(r"[#?]|[\0-\x1f]")  # what obstore would take for another character of a key, or refuses


def delete_objects(io: FileIO, paths: Collection[str]) -> None:
    """Deletes objects; missing ones are no error. Raises OSError if the store refuses or does not answer.

    What was written in their place is on the disk before.
    """
    sync_objects(io)
    by_bucket, rest = _by_bucket(paths) if io.properties.get("s3.access-key-id") else ({}, paths)
    for bucket, keys in by_bucket.items():
        _send(_store(io.properties, bucket), keys)
    with ThreadPoolExecutor(SEVERAL) as pool:
        list(pool.map(lambda path: _delete(io, path), rest))


def _by_bucket(paths: Collection[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Keys by bucket, and the paths that must be deleted one by one."""
    found: dict[str, list[str]] = defaultdict(list)
    rest = []
    for path in sorted(paths):
        scheme, _, place = path.partition("://")
        bucket, _, key = place.partition("/")
        if scheme in SPELLINGS and not _REWRITTEN.search(key) and not _is_resolved(key):
            found[bucket].append(key)
        else:
            rest.append(path)
    return found, rest


def _is_resolved(key: str) -> bool:
    """Whether clients normalize the name into another one."""
    return not {"", ".", ".."}.isdisjoint(key.split("/"))


def _store(properties: Mapping[str, str], bucket: str) -> S3Store:
    from obstore.store import S3Store

    endpoint = properties.get("s3.endpoint")
    in_host = properties.get("s3.force-virtual-addressing") == "true"
    return S3Store(
        bucket,
        endpoint=_endpoint(endpoint, bucket if in_host else None),
        access_key_id=properties["s3.access-key-id"],
        secret_access_key=properties["s3.secret-access-key"],
        region=properties["s3.region"],
        virtual_hosted_style_request=in_host,
        client_options={"allow_http": True, **_without_proxy(endpoint), **_trusting(properties.get(S3_CA))},
        retry_config={"retry_timeout": PATIENCE},
    )


def _trusting(authorities: str | None) -> ClientConfig:
    return {"root_certificate": Path(authorities).read_bytes()} if authorities else {}


def _endpoint(endpoint: str | None, bucket_in_host: str | None) -> str | None:
    if endpoint is None or bucket_in_host is None:
        return endpoint
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{bucket_in_host}.{parts.netloc}"


def _without_proxy(endpoint: str | None) -> ClientConfig:
    """Options that bypass proxies of the environment, as Arrow does."""
    host = urlsplit(endpoint).hostname if endpoint else None
    return {"proxy_url": "http://none.invalid", "proxy_excludes": host or "amazonaws.com"}


def _send(store: S3Store, keys: Sequence[str]) -> None:
    import obstore
    from obstore.exceptions import BaseError

    try:
        obstore.delete(store, keys)
    except BaseError as error:
        # "AWS Error" is what `outage.told` knows the store's errors by: Arrow's begin so
        raise OSError(f"AWS Error while deleting objects: {str(error).splitlines()[0]}") from None


def _delete(io: FileIO, path: str) -> None:
    if _is_resolved((path.partition("://")[2] or path).removeprefix("/")):
        raise OSError(f"{path} cannot be deleted by this name: delete it with the store's own tools")
    scheme, authority, place = parse_location(path, io.properties)
    with suppress(FileNotFoundError):
        cast("PyArrowFileIO", io).fs_by_scheme(scheme, authority).delete_file(place)
