"""`python -m lakehouse_stack render|access|jars|s3`: the commands that the containers of docker/ run."""

import argparse
import sys
from pathlib import Path

from lakehouse.errors import LakehouseError
from lakehouse.settings import load_settings
from lakehouse_stack.control.containers import write_access_files, write_container_files
from lakehouse_stack.downloads.artifacts import read_manifest
from lakehouse_stack.downloads.download import ensure_artifacts
from lakehouse_stack.home.config import stack_settings
from lakehouse_stack.servers.s3 import serve_in_container


def main() -> None:
    """Runs one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m lakehouse_stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    render = commands.add_parser("render", help="write the configuration of all containers")
    render.add_argument("folder", type=Path)
    commands.add_parser("jars", help="fetch the jars of Spark and S3Proxy, at image build time")
    s3 = commands.add_parser("s3", help="serve a folder as S3, with the keys of the settings")
    s3.add_argument("folder", type=Path)
    access = commands.add_parser("access", help="write Trino's certificate, logins and rules")
    access.add_argument("folder", type=Path)
    access.add_argument("certificates", type=Path, help="folder that may hold trino.pem and trino-ca.pem")
    arguments = parser.parse_args()
    if arguments.command == "render":
        write_container_files(arguments.folder, load_settings(), stack_settings().trino_heap_mb)
    elif arguments.command == "access":
        write_access_files(arguments.folder, arguments.certificates, load_settings())
    elif arguments.command == "s3":
        serve_in_container(arguments.folder, load_settings(), stack_settings().s3_heap_mb)
    else:
        ensure_artifacts(load_settings(), artifacts=tuple(a for a in read_manifest() if a.unpack_to is None))


if __name__ == "__main__":
    try:
        main()
    except LakehouseError as error:
        sys.exit(f"error: {error}")
