"""`python -m lakehouse_stack render|access|jars|s3|reads|kafka|connect`: the commands of docker/'s containers."""

import argparse
import sys
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse_stack.control.containers import write_access_files, write_container_files
from lakehouse_stack.downloads.artifacts import kafka_jars, read_manifest
from lakehouse_stack.downloads.download import ensure_artifacts
from lakehouse_stack.home.config import stack_settings
from lakehouse_stack.servers.kafka import broker_in_container, connect_in_container
from lakehouse_stack.servers.reads import keep_log
from lakehouse_stack.servers.s3 import serve_in_container


def main() -> None:
    """Runs one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m lakehouse_stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    render = commands.add_parser("render", help="write the configuration of all containers")
    render.add_argument("folder", type=Path)
    commands.add_parser("jars", help="fetch the jars of Spark, S3Proxy and Kafka, at image build time")
    s3 = commands.add_parser("s3", help="serve a folder as S3, with the keys of the settings")
    s3.add_argument("folder", type=Path)
    access = commands.add_parser("access", help="write Trino's certificate, logins and rules")
    access.add_argument("folder", type=Path)
    access.add_argument("certificates", type=Path, help="folder that may hold trino.pem and trino-ca.pem")
    commands.add_parser("reads", help="log who reads from Trino what readers may not")
    kafka = commands.add_parser("kafka", help="serve topics from a folder")
    kafka.add_argument("folder", type=Path)
    kafka.add_argument("host", help="how clients call it")
    connect = commands.add_parser("connect", help="run connectors of Debezium")
    connect.add_argument("servers", help="the brokers, with their ports")
    arguments = parser.parse_args()
    if arguments.command == "render":
        write_container_files(arguments.folder, load_settings(), stack_settings().trino_heap_mb)
    elif arguments.command == "access":
        write_access_files(arguments.folder, arguments.certificates, load_settings())
    elif arguments.command == "s3":
        serve_in_container(arguments.folder, load_settings(), stack_settings().s3_heap_mb)
    elif arguments.command == "reads":
        keep_log(load_settings())
    elif arguments.command == "kafka":
        broker_in_container(arguments.folder, arguments.host, load_settings(), stack_settings().kafka_heap_mb)
    elif arguments.command == "connect":
        connect_in_container(arguments.servers, load_settings(), stack_settings().kafka_heap_mb)
    else:
        jars = (*(a for a in read_manifest() if a.unpack_to is None), *kafka_jars())
        ensure_artifacts(load_settings(), artifacts=jars)


if __name__ == "__main__":
    try:
        main()
    except LakehouseError as error:
        sys.exit(f"error: {error}")
