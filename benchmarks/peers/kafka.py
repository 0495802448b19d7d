"""The configuration of a Connect worker as it is shipped or tuned, and the number of events in a topic."""

import os
import struct
from collections.abc import Mapping
from pathlib import Path

from lakehouse_stack.servers.kafka import BATCH_BYTES, lines


def worker(folder: Path, ports: Mapping[str, int], tuned: bool) -> str:
    """Kafka's default properties of a standalone Connect worker; `tuned`: no schemas, and large batches."""
    json: dict[str, object] = {
        f"{side}.converter{option}": value
        for side in ("key", "value")
        for option, value in (
            ("", "org.apache.kafka.connect.json.JsonConverter"),
            (".schemas.enable", "false" if tuned else "true"),
        )
    }
    large_batches = {
        "producer.batch.size": BATCH_BYTES, "producer.linger.ms": 50, "producer.compression.type": "lz4",
        "producer.max.request.size": 4 * BATCH_BYTES, "producer.buffer.memory": 64 * BATCH_BYTES,
    }  # fmt: skip
    return lines(json | (large_batches if tuned else {}) | {
        "bootstrap.servers": f"127.0.0.1:{ports['broker']}", "listeners": f"http://127.0.0.1:{ports['rest']}",
        "offset.storage.file.filename": folder / "offsets", "plugin.discovery": "service_load",
    })  # fmt: skip


def end_offset(partition: Path) -> int:
    """The end offset of a partition, read from the record batches of its newest segment.

    A batch starts with base offset, length, leader epoch, magic, CRC, attributes and last offset delta (Kafka's
    documentation, "Record Batch"); the length does not include the first two fields.
    """
    segment = max(partition.glob("*.log"), default=None)
    if segment is None:  # the topic is being created
        return 0
    end, at, size = int(segment.stem), 0, segment.stat().st_size
    with segment.open("rb", buffering=0) as log:
        while at + 27 <= size:
            base, length, _, _, _, _, delta = struct.unpack(">qiibIhi", os.pread(log.fileno(), 27, at))
            at += 12 + length
            if at <= size:  # otherwise the batch is still being written
                end = base + delta + 1
    return end
