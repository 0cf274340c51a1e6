#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""OpenMetrics text, as `ndbus stat --openmetrics` prints it: read strictly, hostile names included."""

import json
import os
import socket
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import ndbus_run
import openmetrics
from ndbus_run import Daemon, Sub, run

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TOPICS = ['a"b', "back\\slash", "\\n", 'x"} 1', "k\u00e4se/\u20ac/\U0001f600", "\\", "{", "a,b=\"c\""]


def put(folder, name, data):
    path = os.path.join(folder, name)
    with open(path, "wb") as f:
        f.write(data)
    return path


def read_exactly(connection, n):
    data = b""
    while len(data) < n:
        piece = connection.recv(n - len(data))
        assert piece, "the daemon has closed"
        data += piece
    return data


def connect_as(daemon, name):
    """A client of that name, bytes, by PROTOCOL.md 2, 3.1 and 4.3."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(ndbus_run.DEADLINE)
    connection.connect(daemon.unix[len("unix:"):])
    header = b"\x82\xa8features\x90\xa6client\xd9" + bytes([len(name)]) + name
    connection.sendall(b"NDBUS\0\1\1" + bytes(8) + struct.pack("<BBHI32xQ16x", 1, 0, 0, len(header), 1)
                       + header)
    read_exactly(connection, 16)
    assert read_exactly(connection, 1) == b"\2", "no WELCOME"
    return connection


def text_of_command(daemon):
    return run("stat", "--openmetrics", url=daemon.unix, check=0).stdout


def values(family, label):
    return {dict(key)[label]: value for key, value in family.samples.items()}


def test_all_is_there(folder):
    with Daemon() as daemon:
        stats = json.loads(run("stat", "--json", url=daemon.unix, check=0).out)
        found = openmetrics.parse(text_of_command(daemon))
        for name in stats["counters"]:
            family = found["ndbus_" + name]
            assert family.type == "counter" and len(family.samples) == 1, name
            assert family.unit == ("bytes" if name.endswith("_bytes") else None), name
        assert found["ndbus_build"].samples == {(("version", stats["server"]["version"]),): 1}
        assert found["ndbus_memory_max_bytes"].samples == {(): stats["memory"]["max"]}
        assert found["ndbus_memory_max_bytes"].unit == "bytes"
        assert found["ndbus_uptime_seconds"].unit == "seconds"
        with open(os.path.join(SOURCE, "daemon", "ndbusd.8"), encoding="utf-8") as f:
            manual = f.read().replace("\\", "").split(".SH METRICS")[1].split(".SH ")[0].split()
        for name, family in found.items():
            if name[len("ndbus_"):] not in stats["counters"]:
                full = name + openmetrics.SUFFIXES[family.type]
                assert full in manual, f"{full} is not in the manual page"


def test_numbers(folder):
    blob = put(folder, "blob", bytes(1000))
    with Daemon() as daemon:
        sub = Sub(daemon.unix, "t/*", "--depth", 2, "--policy", "drop-oldest")
        member = Sub(daemon.unix, "t/*", "--group", "g")
        for _ in range(3):
            run("pub", "t/a", blob, "--dtype", "uint8", "--retain", url=daemon.unix, check=0)
        sub.read_line()
        found = openmetrics.parse(text_of_command(daemon))
        assert found["ndbus_messages_in"].samples == {(): 3}
        assert found["ndbus_messages_in_bytes"].samples == {(): 3000}
        assert values(found["ndbus_topic_messages"], "topic")["t/a"] == 3
        assert values(found["ndbus_topic_bytes"], "topic")["t/a"] == 3000
        assert values(found["ndbus_topic_subscribers"], "topic")["t/a"] == 2
        assert values(found["ndbus_group_matched_messages"], "group") == {"g": 3}
        dropped = found["ndbus_subscription_dropped_messages"].samples
        assert {dict(key)["reason"] for key in dropped} >= {"drop-oldest", "drop-newest"}, dropped
        assert {dict(key)["policy"] for key in dropped} == {"drop-oldest"}, dropped
        # a subscription is found by the source that its client has
        for key in found["ndbus_subscription_matched_messages"].samples:
            assert dict(key)["source"] in values(found["ndbus_client_queued_bytes"], "source")
        for process in [sub, member]:
            process.interrupt()


def test_hostile_names(folder):
    blob = put(folder, "blob", b"x")
    names = [b'a"b', b"back\\slash", b"new\nline", b"\\n", b"\xff\xfe", b'"} 1\nforged 1', "\u00e4".encode(), b""]
    with Daemon() as daemon:
        clients = [connect_as(daemon, name) for name in names]
        for topic in TOPICS:
            run("pub", topic, blob, "--dtype", "uint8", "--retain", url=daemon.unix, check=0)
        data = text_of_command(daemon)
        found = openmetrics.parse(data)
        assert set(values(found["ndbus_topic_messages"], "topic")) >= set(TOPICS)
        shown = [dict(key)["client"] for key in found["ndbus_client_window_bytes"].samples]
        stats = json.loads(run("stat", "--json", url=daemon.unix, check=0).out)
        said = [c["client"] for c in stats["clients"]]
        assert len(said) == len(names) + 1 and sorted(shown) == sorted(said), (shown, said)
        assert "back\\slash" in shown and "\\n" in shown, shown
        for connection in clients:
            connection.close()


def main():
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            with tempfile.TemporaryDirectory(prefix="ndbus-test-") as folder:
                test(folder)
                print("ok", name)


if __name__ == "__main__":
    main()
