"""The Kafka peer's event count, read from record batches."""

import struct

from benchmarks.peers.kafka import end_offset


def batch(base: int, records: int, payload: int) -> bytes:
    """A record batch: 61 bytes of header, of which the count reads the first 27."""
    header = struct.pack(">iBIhi", 0, 2, 0, 0, records - 1) + bytes(34)
    return struct.pack(">qi", base, len(header) + payload) + header + bytes(payload)


def test_a_partition_ends_after_the_last_record_of_its_newest_segment(tmp_path):
    (tmp_path / "00000000000000000000.log").write_bytes(batch(0, 70, 10))
    (tmp_path / "00000000000000000070.log").write_bytes(batch(70, 5, 300) + batch(75, 1, 0) + batch(76, 24, 7))
    assert end_offset(tmp_path) == 100


def test_a_batch_that_is_still_being_written_does_not_count(tmp_path):
    whole, half = batch(0, 8, 100), batch(8, 3, 100)[:-1]
    for rest in (half, half[:61], half[:27], half[:20], b""):
        (tmp_path / "00000000000000000000.log").write_bytes(whole + rest)
        assert end_offset(tmp_path) == 8


def test_a_new_segment_begins_where_the_one_before_ended_and_a_new_topic_has_nothing(tmp_path):
    assert end_offset(tmp_path) == 0
    (tmp_path / "00000000000000000042.log").touch()
    assert end_offset(tmp_path) == 42
