#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""OpenMetrics text, from `ndbus stat --openmetrics` and from --metrics: read strictly, hostile names
included; and what the listener does with who speaks no HTTP, too much, or too slowly.
"""

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import ndbus_run
import openmetrics
from ndbus_run import Daemon, Sub, put, run

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TOPICS = ['a"b', "back\\slash", "\\n", 'x"} 1', "k\u00e4se/\u20ac/\U0001f600", "\\", "{", "a,b=\"c\""]


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


def test_histograms(folder):
    sizes = [1, 64, 65, 5000, 2000000]
    with MetricsDaemon() as daemon:
        sub = Sub(daemon.unix, "t", "--count", len(sizes))
        for size in sizes:
            run("pub", "t", put(folder, "blob", bytes(size)), "--dtype", "uint8", url=daemon.unix, check=0)
        sub.finish()
        stats = json.loads(run("stat", "--json", url=daemon.unix, check=0).out)["histograms"]
        for text in [text_of_command(daemon), ask(daemon, GET)[2]]:
            found = openmetrics.parse(text)
            size = found["ndbus_message_size_bytes"]
            assert size.type == "histogram" and size.unit == "bytes"
            assert size.count == len(sizes) and size.sum == sum(sizes)
            held = {bound: n for bound, n in values(size, "le").items() if n}
            assert held == {"64.0": 2, "256.0": 1, "16384.0": 1, "4.194304e+06": 1}, held
            assert values(size, "le") == stats["message_size_bytes"]["buckets"]
            # what is passed on while it arrives stands in no queue
            wait = found["ndbus_queue_wait_seconds"]
            assert wait.unit == "seconds" and len(sizes) - 1 <= wait.count <= len(sizes), wait.buckets
            assert found["ndbus_write_batch_packets"].count > len(sizes)


def test_waiting_is_measured(folder):
    """A stopped subscriber: what its window does not take waits at least from when it was seen to wait
    until the subscriber goes on."""
    n, window = 300, 256
    with Daemon() as daemon:
        sub = Sub(daemon.unix, "t", "--count", n)
        sub.process.send_signal(signal.SIGSTOP)
        run("pub", "t", put(folder, "blob", b"x"), "--dtype", "uint8", "--repeat", n, url=daemon.unix,
            check=0)
        stats = json.loads(run("stat", "--json", url=daemon.unix, check=0).out)
        seen = time.monotonic()
        waiting = stats["subscriptions"][0]["queued"]
        assert waiting == n - window, stats["subscriptions"]
        run("ping", url=daemon.unix, check=0)
        waited = time.monotonic() - seen
        sub.process.send_signal(signal.SIGCONT)
        sub.finish()
        wait = openmetrics.parse(text_of_command(daemon))["ndbus_queue_wait_seconds"]
        assert wait.count == n and wait.sum >= waiting * waited, (wait.sum, waiting, waited)


def test_reader_of_histograms_is_strict(folder):
    head = "# TYPE a_bytes histogram\n# UNIT a_bytes bytes\n# HELP a_bytes x\n"
    good = ['a_bytes_bucket{le="1.0"} 1', 'a_bytes_bucket{le="+Inf"} 3', "a_bytes_count 3", "a_bytes_sum 9"]

    def parse(lines):
        return openmetrics.parse((head + "".join(line + "\n" for line in lines) + "# EOF\n").encode())

    assert parse(good)["a_bytes"].buckets == [(1, 1), (float("inf"), 3)]
    wrong = [good[:i] + good[i + 1:] for i in range(1, 4)]
    wrong += [[good[1], good[0], *good[2:]], [*good, good[3]], ["a_bytes 1", *good], [good[0], *good],
              [*good[:2], good[3], good[2]]]
    wrong += [[good[0].replace("1.0", bound), *good[1:]] for bound in ["1", "x", "-1.0", "1e6", "Inf"]]
    wrong += [[good[0], good[1].replace("3", "0"), *good[2:]], [*good[:2], "a_bytes_count 2", good[3]],
              [good[0].replace('le="1.0"', 'x="1.0"'), *good[1:]], [*good[:3], "a_bytes_other 1"]]
    for lines in wrong:
        try:
            parse(lines)
        except ValueError:
            continue
        raise AssertionError(f"read without complaint: {lines}")


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


TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
SCRAPES_MAX = 16
REQUEST_BYTES = 8192


class MetricsDaemon(Daemon):
    """With a listener for metrics on a Unix socket and on a TCP port of the system's choice."""

    def __init__(self, *options):
        super().__init__()
        self.path = os.path.join(self.folder, "m")
        self.options = ["--metrics", "unix:" + self.path, "--metrics", "tcp://127.0.0.1:0",
                        "--log-level", "info", *options]

    def __enter__(self):
        super().__enter__()
        log, port = b"", None
        while not port:
            piece = os.read(self.process.stderr.fileno(), 4096)
            assert piece, log
            log += piece
            port = re.search(rb"metrics on tcp://127\.0\.0\.1:(\d+)\n", log)
        self.port = int(port.group(1))
        return self

    def open(self, tcp=False):
        connection = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        connection.settimeout(ndbus_run.DEADLINE)
        connection.connect(("127.0.0.1", self.port) if tcp else self.path)
        return connection


def read_answer(connection):
    """Status, headers, body; and that the connection then ends."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
    connection.close()
    head, empty, body = data.partition(b"\r\n\r\n")
    assert empty, data
    first, *lines = head.decode("ascii").split("\r\n")
    assert first.startswith("HTTP/1.1 "), first
    headers = dict(line.split(": ", 1) for line in lines)
    assert len(headers) == len(lines) and headers["Connection"] == "close", lines
    assert int(headers["Content-Length"]) == len(body), headers
    return int(first.split()[1]), headers, body


def ask(daemon, request, tcp=False):
    connection = daemon.open(tcp)
    connection.sendall(request)
    return read_answer(connection)


def test_listener_answers(folder):
    blob = put(folder, "blob", b"x")
    with MetricsDaemon() as daemon:
        for topic in TOPICS:
            run("pub", topic, blob, "--dtype", "uint8", "--retain", url=daemon.unix, check=0)
        for tcp in [False, True]:
            for request in [GET, b"GET /metrics HTTP/1.0\r\n\r\n", b"GET /metrics?a=b HTTP/1.0\n\n",
                            b"GET /metrics HTTP/1.1\r\nA: b\r\nhOST: x\r\n\r\n", GET + b"more"]:
                status, headers, body = ask(daemon, request, tcp)
                assert status == 200 and headers["Content-Type"] == TYPE, (request, status, headers)
                found = openmetrics.parse(body)
                assert set(values(found["ndbus_topic_messages"], "topic")) >= set(TOPICS)
        # the same names and texts as the command's
        meta = [[line for line in text.decode().splitlines() if line.startswith("#")]
                for text in [body, text_of_command(daemon)]]
        assert meta[0] == meta[1]
        counted = openmetrics.parse(text_of_command(daemon))
        assert counted["ndbus_metrics_answered"].samples == {(): 10}
        assert counted["ndbus_metrics_refused"].samples == {(): 0}


def test_listener_refuses(folder):
    with MetricsDaemon() as daemon:
        cases = [
            (404, b"GET / HTTP/1.0\r\n\r\n"), (404, b"GET /metrics/ HTTP/1.0\r\n\r\n"),
            (404, b"POST /x HTTP/1.0\r\n\r\n"), (405, b"POST /metrics HTTP/1.0\r\n\r\n"),
            (405, b"HEAD /metrics HTTP/1.0\r\n\r\n"), (400, b"\n\n"), (400, b"\r\n\r\n"), (400, b" \n\n"),
            (400, b"GET /metrics\r\n\r\n"), (400, b"GET  /metrics HTTP/1.0\r\n\r\n"),
            (400, b"GET /metrics HTTP/2.0\r\n\r\n"), (400, b"GET metrics HTTP/1.0\r\n\r\n"),
            (400, b"GET /metrics HTTP/1.0 x\r\n\r\n"), (400, b"GET /metrics HTTP/1.1\r\n\r\n"),
            (400, b"GET /met\0rics HTTP/1.0\r\n\r\n"), (400, b"\x16\x03\x01\0\xff\xff"),
            (400, b"NDBUS\0\1\1" + bytes(8)), (400, b"x" * REQUEST_BYTES),
            (400, GET[:-2] + b"A: " + b"b" * REQUEST_BYTES + b"\r\n\r\n"),
        ]
        for tcp in [False, True]:
            for wanted, request in cases:
                status, headers, body = ask(daemon, request, tcp)
                assert status == wanted, (request[:40], status)
                assert (headers.get("Allow") == "GET") == (wanted == 405), headers
        # the largest that is allowed
        filler = GET[:-2] + b"A: "
        request = filler + b"b" * (REQUEST_BYTES - len(filler) - 4) + b"\r\n\r\n"
        assert len(request) == REQUEST_BYTES and ask(daemon, request)[0] == 200
        found = openmetrics.parse(ask(daemon, GET)[2])
        assert found["ndbus_metrics_refused"].samples == {(): 2 * len(cases)}


def test_listener_byte_by_byte(folder):
    with MetricsDaemon() as daemon:
        connection = daemon.open(tcp=True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(len(GET)):
            connection.sendall(GET[i:i + 1])
        assert read_answer(connection)[0] == 200
        # gone in the middle, before and after the answer began; and descriptors are of no use
        for request in [b"", GET[:9], GET]:
            connection = daemon.open()
            connection.sendall(request)
            connection.close()
        connection = daemon.open()
        with open(os.devnull, "rb") as file:
            socket.send_fds(connection, [GET], [file.fileno()] * 200)
        assert read_answer(connection)[0] == 200


def test_listener_is_bounded(folder):
    """More than may be at a time say nothing: the others are served when the deadline ends them."""
    with MetricsDaemon() as daemon:
        silent = [daemon.open() for _ in range(SCRAPES_MAX)]
        last = daemon.open()
        last.sendall(GET)
        run("ping", url=daemon.unix, check=0)
        found = openmetrics.parse(read_answer(last)[2])
        timeouts = found["ndbus_metrics_timeouts"].samples[()]
        assert 1 <= timeouts <= SCRAPES_MAX, timeouts
        for connection in silent:
            assert connection.recv(1) == b"", "the deadline ends it without an answer"
            connection.close()
        # all of them were waited for: none is left
        assert ask(daemon, GET)[0] == 200
        # one that never reads does not keep the daemon from stopping
        daemon.open().sendall(GET)


def test_listener_is_for_this_machine(folder):
    secret = put(folder, "secret", b"0123456789abcdef")
    os.chmod(secret, 0o600)
    for options, works in [([], False), (["--token", f"lab {secret}"], False), (["--insecure-anyone"], True)]:
        daemon = Daemon("--metrics", "tcp://0.0.0.0:0", *options)
        if works:
            with daemon:
                pass
            continue
        done = subprocess.run([ndbus_run.NDBUSD, "--listen", daemon.unix, *daemon.options],
                              capture_output=True, timeout=ndbus_run.DEADLINE)
        shutil.rmtree(daemon.folder)
        assert done.returncode == 2, done
        assert b"--metrics: tcp://0.0.0.0 is not loopback" in done.stderr, done.stderr
        assert b"--insecure-anyone" in done.stderr and b"--token" not in done.stderr, done.stderr


def test_listener_takes_no_path_of_another(folder):
    with Daemon() as daemon:
        done = subprocess.run([ndbus_run.NDBUSD, "--listen", "unix:" + os.path.join(folder, "s"),
                               "--metrics", daemon.unix], capture_output=True,
                              timeout=ndbus_run.DEADLINE)
        assert done.returncode == 1 and b"--metrics: " in done.stderr, done
        run("ping", url=daemon.unix, check=0)


ndbus_run.run_tests(globals())
