#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""What the log says of subscriptions that lose messages, take none, or stop their publishers: who, on
which topic, how many messages and bytes, for how long; and nothing where nothing is wrong.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import ndbus_run
from ndbus_run import Daemon, Sub, put, run

WINDOW = 10  # little enough for any socket
SIZE = 1000


class Log:
    """The daemon's, line by line."""

    def __init__(self, daemon):
        self.fd = daemon.process.stderr.fileno()
        self.text = b""
        self.seen = []

    def wait(self, what):
        """The fields of the next line that begins so."""
        while True:
            while b"\n" not in self.text:
                ready, _, _ = select.select([self.fd], [], [], ndbus_run.DEADLINE)
                piece = os.read(self.fd, 65536) if ready else b""
                assert piece, (what, self.seen)
                self.text += piece
            line, self.text = self.text.split(b"\n", 1)
            self.seen.append(line.decode())
            found = re.match(r"\S+ ndbusd: (\w+): (.*)", self.seen[-1])
            assert found, self.seen
            level, message = found.groups()
            if message.startswith(what + " "):
                fields = {name: value.strip('"') for name, value in
                          re.findall(r'(\w+)=("[^"]*"|[^ "]+)', message)}
                return dict(fields, level=level, line=message)


def pub(daemon, topic, n=1, *arguments, check=0, url=None):
    return run("pub", topic, put(daemon.folder, "blob", bytes(SIZE)), "--dtype", "uint8", "--repeat", n,
               *arguments, url=url or daemon.tcp, check=check)


def stopped(daemon, pattern, *arguments):
    window = [] if "latest" in arguments else ["--window", WINDOW]
    sub = Sub(daemon.unix, pattern, *window, *arguments)
    sub.process.send_signal(signal.SIGSTOP)
    return sub


def end(sub):
    sub.process.kill()
    sub.process.communicate()


def is_of(fields, sub, pattern, policy):
    assert f"pid={sub.process.pid}" in fields["peer"] and "uid=" in fields["peer"], fields
    assert "ndbus" in fields["client"] and fields["subscription"] == "1", fields
    assert fields["pattern"] == pattern and fields["policy"] == policy, fields
    assert int(fields["seconds"]) >= 0, fields


def test_losses(folder):
    depth, n = 5, 100
    for policy in ["drop-oldest", "drop-newest"]:
        with Daemon() as daemon:
            log = Log(daemon)
            sub = stopped(daemon, "t/*", "--policy", policy, "--depth", depth)
            pub(daemon, "t/1", n)
            told = log.wait("messages dropped")
            is_of(told, sub, "t/*", policy)
            assert told["level"] == "notice" and told["reason"] == policy and told["topic"] == "t/1", told
            lost = int(told["messages"])
            assert 0 < lost <= n - WINDOW - depth and int(told["bytes"]) == lost * SIZE, told
            # what comes within the minute is told when it leaves: then the lines add up
            pub(daemon, "t/2", 10)
            stats = json.loads(run("stat", "--json", url=daemon.tcp, check=0).out)
            dropped = stats["subscriptions"][0]["dropped"]
            assert dropped == n + 10 - WINDOW - depth, stats["subscriptions"]
            end(sub)
            lines = [told]
            while sum(int(line["messages"]) for line in lines) < dropped:
                lines.append(log.wait("messages dropped"))
            assert sum(int(line["messages"]) for line in lines) == dropped
            assert sum(int(line["bytes"]) for line in lines) == dropped * SIZE


def test_losses_by_a_limit(folder):
    with Daemon("--limit", f"user:{os.getuid()} queued=20K") as daemon:
        log = Log(daemon)
        sub = stopped(daemon, "t")
        pub(daemon, "t", 400)
        told = log.wait("messages dropped")
        is_of(told, sub, "t", "drop-oldest")
        assert told["level"] == "warning" and told["reason"] == "limit", told
        end(sub)


def test_no_trouble(folder):
    """Who keeps up, and who only wants what is new, is not spoken of; nor who leaves with messages
    waiting."""
    with Daemon("--block-timeout", "2000") as daemon:
        subs = [Sub(daemon.unix, "t", "--count", 300), stopped(daemon, "t", "--policy", "latest"),
                stopped(daemon, "t")]
        pub(daemon, "t", 300)
        subs[0].finish()
        for sub in subs[1:]:
            end(sub)
        log = Log(daemon)
        other = stopped(daemon, "x", "--depth", 1)
        pub(daemon, "x", 300)
        log.wait("messages dropped")  # the first of all
        told = [line for line in log.seen if "messages dropped" in line]
        assert len(told) == 1 and 'pattern="x"' in told[0], log.seen
        end(other)


def test_stall(folder):
    with Daemon("--block-timeout", "2000") as daemon:
        log = Log(daemon)
        sub = stopped(daemon, "t")
        pub(daemon, "t", WINDOW + 7)
        told = log.wait("subscription takes nothing")
        is_of(told, sub, "t", "drop-oldest")
        assert told["topic"] == "t" and told["queued"] == "7" and told["queued_bytes"] == str(7 * SIZE), told
        assert told["untaken"] == str(WINDOW) and told["untaken_bytes"] == str(WINDOW * SIZE), told
        assert told["socket"] == "open" and int(told["seconds"]) >= 1, told
        sub.process.send_signal(signal.SIGCONT)
        told = log.wait("subscription takes messages again")
        is_of(told, sub, "t", "drop-oldest")
        assert int(told["seconds"]) >= 1, told
        sub.interrupt()


def test_stopped_publisher(folder):
    with Daemon("--block-timeout", "10000") as daemon:
        log = Log(daemon)
        sub = stopped(daemon, "t", "--policy", "block", "--depth", 10)
        stream = subprocess.Popen([ndbus_run.NDBUS, "pub", "t", put(folder, "b", bytes(SIZE)), "--dtype",
                                   "uint8", "--repeat", "1000", "--block", "--url", daemon.unix])
        told = log.wait("publisher stopped by a full queue")
        is_of(told, sub, "t", "block")
        assert f"pid={stream.pid}" in told["publisher_peer"] and "ndbus" in told["publisher_client"], told
        assert told["topic"] == "t" and int(told["queued"]) >= 10 and int(told["seconds"]) >= 5, told
        assert int(told["queued_bytes"]) == int(told["queued"]) * SIZE, told
        sub.process.send_signal(signal.SIGCONT)
        told = log.wait("publisher may go on")
        assert f"pid={stream.pid}" in told["publisher_peer"] and told["topic"] == "t", told
        assert int(told["seconds"]) >= 5, told
        assert stream.wait(ndbus_run.DEADLINE) == 0
        sub.interrupt()


def test_ends(folder):
    with Daemon("--block-timeout", "2000") as daemon:
        log = Log(daemon)
        for policy, error in [("block", "NDBUS_ESLOW"), ("disconnect", "NDBUS_EOVERFLOW")]:
            sub = stopped(daemon, "t", "--policy", policy, "--depth", 10)
            pub(daemon, "t", WINDOW + 11, "--timeout", 1, check=None)
            told = log.wait("subscription ended")
            is_of(dict(told, seconds=0), sub, "t", policy)
            assert told["level"] == "warning" and told["error"] == error and told["topic"] == "t", told
            assert int(told["queued"]) >= 10 and int(told["queued_bytes"]) >= 10 * SIZE, told
            assert re.search(r"is \d+ (ms|messages), the limit is (2000 ms|10 messages)", told["line"]), told
            end(sub)


def test_hostile_names(folder):
    """A topic cannot add fields or lines of its own."""
    with Daemon() as daemon:
        log = Log(daemon)
        sub = stopped(daemon, "**", "--depth", 1)
        pub(daemon, 't" reason=none messages=9 x="\\/\u00e4', 300)
        told = log.wait("messages dropped")
        assert told["topic"] == "t? reason=none messages=9 x=??/??" and told["reason"] == "drop-oldest", told
        assert told["pattern"] == "**" and told["messages"] != "9", told
        end(sub)


ndbus_run.run_tests(globals())
