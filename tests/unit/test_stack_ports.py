"""Ports are chosen once, stored, and replaced if another process holds them."""

import socket

import pytest

from lakehouse.errors import LakehouseError
from lakehouse_stack.home.ports import RANGE, is_free, plan_ports, read_ports, write_ports

NAMES = ("sources", "trino")


def everything_is_free(port: int) -> bool:
    return True


def test_new_ports_are_distinct_and_outside_the_range_of_outgoing_connections():
    ports = plan_ports(map(str, range(50)), {}, {}, {}, everything_is_free)
    assert len(set(ports.values())) == 50
    assert all(port in RANGE for port in ports.values())


def test_a_kept_port_stays():
    assert plan_ports(NAMES, {"sources": 21000, "trino": 21001}, {}, {}, everything_is_free) == {
        "sources": 21000,
        "trino": 21001,
    }


def test_a_kept_port_that_our_own_server_holds_stays():
    ports = plan_ports(NAMES, {"sources": 21000, "trino": 21001}, {}, {"trino": 21001}, lambda port: port != 21001)
    assert ports["trino"] == 21001


def test_a_kept_port_that_a_stranger_holds_is_replaced():
    ports = plan_ports(NAMES, {"sources": 21000, "trino": 21001}, {}, {}, lambda port: port != 21001)
    assert ports["sources"] == 21000
    assert ports["trino"] not in (21000, 21001)


def test_a_fixed_port_that_a_stranger_holds_is_an_error_that_names_port_and_variable():
    with pytest.raises(LakehouseError, match=r"port 8080 for trino .* LAKEHOUSE_STACK_TRINO_PORT"):
        plan_ports(NAMES, {"trino": 21001}, {"trino": 8080}, {}, lambda port: port != 8080)


def test_a_new_fixed_port_wins_over_the_kept_one():
    ports = plan_ports(NAMES, {"sources": 21000, "trino": 21001}, {"trino": 8080}, {"trino": 21001}, everything_is_free)
    assert ports["trino"] == 8080


def test_a_listening_port_is_not_free():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert not is_free(server.getsockname()[1])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"trino": "x"}'])
def test_a_damaged_file_counts_as_no_ports(tmp_path, text):
    (tmp_path / "ports.json").write_text(text)
    assert read_ports(tmp_path / "ports.json") == {}


def test_ports_survive_a_round_trip(tmp_path):
    write_ports(tmp_path / "ports.json", {"trino": 21001})
    assert read_ports(tmp_path / "ports.json") == {"trino": 21001}
