"""The usual stage after Kafka: Spark reads the topics, parses the JSON and appends to Iceberg.

It is a separate process that stays warm between runs. For each line on its standard input,
`python -m benchmarks.peers.spark_kafka SERVER FOLDER EVENT TOPIC ...` reads all new events, which are of the Spark type
EVENT, and prints the total row count.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers.maven import jars
from benchmarks.workloads import columns_of
from lakehouse.errors import LakehouseError
from lakehouse.servers.spark import spark_session
from lakehouse.settings import Settings, load_settings

SPARK_KAFKA = "4.1.1"
DOES = f"what comes after Debezium: Spark's Kafka source {SPARK_KAFKA} (available now), typed, appended to Iceberg"
WANTED = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_KAFKA),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),  # Maven has no 4.1
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
TABLE = "meta.bench_kafka"
# Postgres type → Spark type of Debezium's JSON; Spark's parser casts strings.
SPARK_TYPES = {
    "int": "int", "smallint": "smallint", "bigint": "bigint", "boolean": "boolean", "double precision": "double",
    "timestamptz": "timestamp", "timestamp": "bigint", "date": "int",
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """The stage's process."""

    process: psutil.Process
    _pipe: subprocess.Popen[str]

    def read_on(self) -> int:
        """Appends all new events; returns the number of rows in the table. Raises LakehouseError."""
        assert self._pipe.stdin and self._pipe.stdout
        self._pipe.stdin.write("\n")
        self._pipe.stdin.flush()
        answer = self._pipe.stdout.readline()
        if not answer:
            raise LakehouseError("Spark's Kafka stage has ended: see its messages above")
        return int(answer)


def envelope(table: str) -> str:
    """The Spark type of Debezium's events of one of the benchmark's tables."""
    row = ", ".join(f"{c.name}: {SPARK_TYPES.get(c.type, _spelled(c.type))}" for c in columns_of(table))
    return f"struct<op: string, before: struct<{row}>, after: struct<{row}>, source: struct<lsn: bigint, txId: bigint>>"


@contextmanager
def spark_kafka(
    settings: Settings, server: str, topics: tuple[str, ...], folder: Path, event: str | None = None
) -> Iterator[Stage]:
    """Starts the stage for these topics; they have Debezium's events unless the type of others is given."""
    classes = jars(settings, f"spark-kafka-{SPARK_KAFKA}", WANTED, transitive=False)
    conf = json.dumps(settings.spark.conf | {"spark.driver.extraClassPath": f"{classes}/*"})
    event = event or envelope(topics[0].rpartition(".")[2])
    command = [sys.executable, "-m", "benchmarks.peers.spark_kafka", server, str(folder), event, *topics]
    environment = os.environ | {"LAKEHOUSE_SPARK__CONF": conf}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        stage = Stage(psutil.Process(process.pid), process)
        try:
            stage.read_on()
            yield stage
        finally:
            assert process.stdin
            process.stdin.close()


def main(server: str, folder: Path, event: str, topics: list[str]) -> None:
    """The process: reads the topics and prints the row count once per line of input."""
    from pyspark.sql.functions import col, from_json

    settings = load_settings()
    session = spark_session(settings, "lakehouse-bench-kafka")
    table = f"{settings.catalog_name}.{TABLE}"
    session.sql(f"DROP TABLE IF EXISTS {table}")
    session.sql(f"CREATE TABLE {table} (topic string, event {event}) USING iceberg")
    options = {"kafka.bootstrap.servers": server, "subscribe": ",".join(topics), "startingOffsets": "earliest"}
    messages = session.readStream.format("kafka").options(**options).load()
    parsed = messages.select("topic", from_json(col("value").cast("string"), event).alias("event"))
    writer = parsed.writeStream.format("iceberg").option("checkpointLocation", str(folder / "checkpoint"))
    for _ in sys.stdin:
        writer.trigger(availableNow=True).toTable(table).awaitTermination()
        print(session.table(table).count(), flush=True)


def _spelled(postgres: str) -> str:
    return postgres.replace("numeric", "decimal") if postgres.startswith("numeric") else "string"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
