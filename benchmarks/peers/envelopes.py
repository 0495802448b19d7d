"""Debezium's messages of inserts into a table of twenty columns, as its JSON converter writes them without schemas."""

import json
from base64 import b64encode
from datetime import datetime, timedelta

from benchmarks.workloads import WIDE

AT = 1_764_000_000_000
PER_TRANSACTION = 1_000
FIRST_XID, FIRST_LSN, RECORD = 1_000, 50_000_000, 200
COLUMNS = {column.name: column.type for column in WIDE}
_T1, _T3 = datetime(2024, 1, 1), datetime(2025, 1, 1)
_T2_MICROSECONDS = 1_672_531_200_000_000
IS_WHOLE = (
    "a1 = (id * 7) % 100000 AND a3 = id * 1000003 AND n1 = cast(id AS decimal(12,2)) / 100"
    " AND n3 = cast(id AS decimal(18,4)) / 10000 AND b1 = (id % 2 = 0) AND f1 = id / 8e0"
    " AND d1 = date_add('day', id % 2000, date '2020-01-01') AND s4 = concat('a somewhat longer text of row ',"
    " cast(id AS varchar), ' with words') AND t1 = date_add('second', id, timestamp '2024-01-01 00:00:00 UTC')"
    " AND t2 = date_add('minute', id, timestamp '2023-01-01 00:00:00')"
)  # of a row, in Trino


def event(number: int) -> bytes:
    """The insert of a row, in a transaction of many."""
    xid, place, lsn = FIRST_XID + number // PER_TRANSACTION, number % PER_TRANSACTION + 1, FIRST_LSN + number * RECORD
    t1, t3 = _T1 + timedelta(seconds=number), _T3 + timedelta(milliseconds=17 * number)
    row = (
        f'"id":{number},"a1":{number * 7 % 100000},"a2":{number % 97},"a3":{number * 1000003},"a4":{number % 30000},'
        f'"n1":"{_decimal(number)}","n2":"{_decimal(number * 3 % 99999)}","n3":"{_decimal(number)}",'
        f'"n4":"{_decimal(number % 1000000)}","t1":"{t1.isoformat()}Z","t2":{_T2_MICROSECONDS + number * 60_000_000},'
        f'"t3":"{t3.isoformat()}Z","d1":{18262 + number % 2000},"b1":{"false" if number % 2 else "true"},'
        f'"s1":"name {number}","s2":"city {number % 500}","s3":"code-{number % 10000}",'
        f'"s4":"a somewhat longer text of row {number} with words",'
        f'"u1":"00000000-0000-0000-0000-{number:012d}","f1":{number / 8}'
    )
    at = AT + xid
    return (
        f'{{"before":null,"after":{{{row}}},"source":{{"version":"3.7.0.Final","connector":"postgresql","name":"bench",'
        f'"ts_ms":{at},"snapshot":"false","db":"bench","sequence":"[\\"{lsn - 9000}\\",\\"{lsn}\\"]","ts_us":{at}000,'
        f'"ts_ns":{at}000000,"schema":"public","table":"wide","txId":{xid},"lsn":{lsn},"xmin":null,"origin":null,'
        f'"origin_lsn":null}},"transaction":{{"id":"{xid}:{lsn}","total_order":{place},"data_collection_order":{place}}},'
        f'"op":"c","ts_ms":{at + 40},"ts_us":{at + 40}123,"ts_ns":{at + 40}123456}}'
    ).encode()


def end(number: int) -> bytes:
    """The end of a transaction."""
    parts = [{"data_collection": "public.wide", "event_count": PER_TRANSACTION}]
    xid, lsn = FIRST_XID + number, FIRST_LSN + (number + 1) * PER_TRANSACTION * RECORD - RECORD // 2
    told = {"status": "END", "id": f"{xid}:{lsn}", "event_count": PER_TRANSACTION, "data_collections": parts}
    return json.dumps(told | {"ts_ms": AT + xid}, separators=(",", ":")).encode()


def _decimal(number: int) -> str:
    return b64encode(number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)).decode()
