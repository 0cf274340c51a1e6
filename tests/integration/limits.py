#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Limits of identities: what is counted, what happens beyond, that nobody else is hurt, and reloads.

Clients on the Unix socket are the user who runs the tests; those on TCP are others: "tcp", or a token.
"""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import ndbus_run
from ndbus_run import Daemon, Sub, put, run

ME = f"user:{os.getuid()}"
KIB, MIB = 1 << 10, 1 << 20


def limit(*rules):
    return [word for rule in rules for word in ("--limit", rule)]


def pub(url, topic, folder, size, *arguments, check=0, env=None):
    return run("pub", topic, put(folder, "blob", bytes(size)), "--dtype", "uint8", *arguments, url=url,
               check=check, env=env)


def stats(daemon):
    return json.loads(run("stat", "--json", url=daemon.tcp, check=0).out)


def identity(daemon, name):
    return {row["identity"]: row for row in stats(daemon)["identities"]}[name]


def says(done, name, value, most, unit, who=ME):
    text = f"{name}: is {value}, the limit is {most} {unit} for {who}"
    assert text in done.err, (text, done.err)


def until(condition):
    """The daemon has seen something that no client hears of, such as the end of another."""
    while not condition():
        pass


def test_refused_at_the_start(folder):
    for rule, text in [
            ("anyone", "'anyone' is not WHO NAME=VALUE,NAME=VALUE ..."),
            ("anyone queued=1M retained=1M", "is not WHO NAME=VALUE"),
            ("everyone queued=1M", "'everyone' is not user:NAME, group:NAME, token:NAME or anyone"),
            ("user:no-such-user queued=1M", "there is no user 'no-such-user'"),
            ("token:lab queued=1M", "there is no token 'lab'"),
            ("anyone queued", "'queued' is not NAME=VALUE"),
            ("anyone memory=1M", "'memory' is no limit; there are connections, "),
            ("anyone connections=0", "connections: 0 is not from 1 to"),
            ("anyone connections=1K", "connections: '1K' has the unknown suffix 'K'"),
            ("anyone queued=x", "queued: 'x' is not a number from 0 to"),
            ("anyone queued=65T", "queued: 65T is not from 0 to"),
            ("anyone rate=-1", "rate: '-1' is not a number"),
            ("anyone queued=1M,queued=2M", "queued is there twice"),
    ]:
        done = subprocess.run([ndbus_run.NDBUSD, "--check-config", "--limit", rule], capture_output=True,
                              text=True, timeout=ndbus_run.DEADLINE)
        assert done.returncode == 2 and text in done.stderr, (rule, done.stderr)
        config = put(folder, "c", f"# limits\nlimit = {rule}\n")
        done = subprocess.run([ndbus_run.NDBUSD, "--check-config", "--config", config],
                              capture_output=True, text=True, timeout=ndbus_run.DEADLINE)
        assert done.returncode == 2 and text in done.stderr, (rule, done.stderr)
        assert "c:2: limit: " in done.stderr or "there is no token" in text, done.stderr
    config = put(folder, "c", "limit = anyone rate=5,queued=1M\nlimit = anyone queued=2M\n")
    done = subprocess.run([ndbus_run.NDBUSD, "--check-config", "--config", config], capture_output=True,
                          text=True, timeout=ndbus_run.DEADLINE)
    assert "c:2: limit: 'anyone queued=2M': 'anyone rate=5,queued=1M' has said queued already" in done.stderr


def test_connections(folder):
    secrets = {name: put(folder, name, name * 20, mode=0o600) for name in ["one", "two"]}
    tokens = [word for name, path in secrets.items() for word in ("--token", f"{name} {path}")]
    with Daemon(*tokens, *limit("anyone connections=2", "token:two connections=3")) as daemon:
        subs = []
        for n, url, name, env in [
                (2, daemon.unix, ME, None),
                (2, daemon.tcp, "token:one", {"NDBUS_TOKEN": f"one:{secrets['one']}"}),
                (3, daemon.tcp, "token:two", {"NDBUS_TOKEN": f"two:{secrets['two']}"})]:
            subs.append([Sub(url, "t", env=env) for _ in range(n)])
            says(run("ping", url=url, env=env, check=1), "connections", n + 1, n, "connections", name)
        # who was refused is not counted, and who has gone neither
        subs[0].pop().interrupt()
        done = None
        while not done or done.returncode:  # its end is seen a moment later
            done = run("ping", url=daemon.unix)
        found = json.loads(run("stat", "--json", url=daemon.unix, check=0).out)
        assert found["counters"]["limited"] >= 3, found["counters"]
        counted = {row["identity"]: row["connections"] for row in found["identities"]}
        assert counted == {ME: 2, "token:one": 2, "token:two": 3}, counted
        for sub in sum(subs, []):
            sub.interrupt()


def test_who_is_near_a_limit_is_seen(folder):
    """What an identity has stands beside what it may have, where it is limited; also after a reload."""
    config = put(folder, "c", "limit = anyone subscriptions=4,queued=2M\n")
    names = {"connections_max", "subscriptions_max", "topics_max", "queued_max_bytes",
             "retained_max_bytes", "held_max_bytes"}
    with Daemon("--config", config) as daemon:
        sub = Sub(daemon.unix, "t")
        pub(daemon.unix, "t", folder, 100 * KIB, "--retain")
        until(lambda: identity(daemon, ME)["connections"] == 1)
        row = identity(daemon, ME)
        assert (row["subscriptions"], row["subscriptions_max"]) == (1, 4), row
        assert row["queued_max_bytes"] == 2 * MIB and "held_max_bytes" not in row, row
        line = [line.split() for line in run("stat", url=daemon.tcp, check=0).out.splitlines()
                if line.startswith(ME)]
        assert line[0][:7] == [ME, "1", "-", "1", "4", "0", "-"], line
        assert line[0][8] == "2.0M" and line[0][10] == line[0][12] == "-", line

        put(folder, "c", "limit = anyone connections=9,subscriptions=8,topics=7,queued=6M,"
                         "retained=5M,held=4M\n")
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: identity(daemon, ME).get("subscriptions_max") == 8)
        row = identity(daemon, ME)
        assert [row[name] for name in sorted(names)] == [9, 4 * MIB, 6 * MIB, 5 * MIB, 8, 7], row
        found = run("stat", "--openmetrics", url=daemon.tcp, check=0).out
        for name in names:
            assert f'ndbus_identity_{name}{{identity="{ME}"}} {row[name]}\n' in found, (name, found)
        # retained values stay, but who has no connection has no limits that could be told
        sub.interrupt()
        until(lambda: identity(daemon, ME)["connections"] == 0)
        row = identity(daemon, ME)
        assert row["retained_bytes"] >= 100 * KIB and not names & set(row), row


def test_half_open_connections_count(folder):
    """They are the user's own, though nobody has said a word; others are let in."""
    with Daemon(*limit(f"{ME} connections=3")) as daemon:
        silent = []
        for _ in range(100):
            silent.append(socket.socket(socket.AF_UNIX))
            silent[-1].settimeout(ndbus_run.DEADLINE)
            silent[-1].connect(daemon.unix[len("unix:"):])
        for connection in silent[3 + 8:]:
            assert connection.recv(1) == b"", "it is one too many"
        assert identity(daemon, ME)["connections"] == 3 + 8
        run("ping", url=daemon.tcp, check=0)
        for connection in silent:
            connection.close()
        until(lambda: ME not in {row["identity"] for row in stats(daemon)["identities"]})
        run("ping", url=daemon.unix, check=0)


def watch(url, n, check=0):
    """Subscribes to n patterns on one connection."""
    return run("record", *[f"t/{i}" for i in range(n)], "-o", "/dev/null", "--timeout", 0, url=url,
               check=check)


def test_subscriptions(folder):
    with Daemon(*limit("anyone subscriptions=4")) as daemon:
        sub = Sub(daemon.unix, "t")
        watch(daemon.unix, 3)
        says(watch(daemon.unix, 4, check=1), "subscriptions", 5, 4, "subscriptions")
        watch(daemon.tcp, 4)
        sub.interrupt()


def test_topics(folder):
    recording = os.path.join(folder, "r")
    with Daemon() as daemon:
        recorder = Sub(daemon.unix, "t/*", "--count", 4, "-o", recording, command="record")
        for i in range(4):
            pub(daemon.unix, f"t/{i}", folder, 1)
        recorder.finish()
    with Daemon(*limit(f"{ME} topics=3")) as daemon:
        sub = Sub(daemon.tcp, "t/*", "--count", 7)
        done = run("replay", recording, "--rate", 0, url=daemon.unix, check=1)
        says(done, "topics", 4, 3, "topics published on or watched")
        run("replay", recording, "--rate", 0, url=daemon.tcp, check=0)
        sub.finish()


def test_message(folder):
    with Daemon(*limit(f"{ME} message=1K")) as daemon:
        sub = Sub(daemon.tcp, "t", "--count", 2)
        pub(daemon.unix, "t", folder, KIB)
        done = pub(daemon.unix, "t", folder, KIB + 1, check=1)
        assert "size exceeds" in done.err and "1025" in done.err and "1024" in done.err, done.err
        pub(daemon.tcp, "t", folder, KIB + 1)
        assert [line.split("\t")[4] for line in sub.finish()] == ["1024", "1025"]


def test_rate(folder):
    """The window of 64 KiB takes less than 16 messages of 4 KiB, and 100 ms of the rate may be ahead;
    the others come when it is their time. Others are not held up."""
    n, rate, burst = 120, 100, 16
    with Daemon(*limit(f"{ME} rate={rate}")) as daemon:
        began = time.monotonic()
        pub(daemon.unix, "t", folder, 4 * KIB, "--repeat", n, "--block")
        took = time.monotonic() - began
        assert took >= (n - burst) / rate - 0.3, took
        assert stats(daemon)["counters"]["messages_unmatched"] == n
        pub(daemon.tcp, "t", folder, 4 * KIB, "--repeat", n)
        assert stats(daemon)["counters"]["limited"] == 0


def test_rate_is_not_got_around(folder):
    """A new connection has a new window, and what is sent in it is counted all the same."""
    with Daemon(*limit(f"{ME} rate=1")) as daemon:
        errors = ""
        while not errors:
            errors = pub(daemon.unix, "t", folder, 1, "--repeat", 300, check=None).err
        said = re.search(r"rate: (\d+) messages came before their time, (\d+) may; "
                         f"the limit is 1 messages a second for {ME}", errors)
        assert said and int(said[1]) > int(said[2]) == 1024, errors
        assert stats(daemon)["counters"]["limited"] > 0
        pub(daemon.tcp, "t", folder, 1, "--repeat", 300)


class Stopped(Sub):
    """A subscriber that does not read: one message in its window, the others wait in the daemon."""

    def __init__(self, daemon, *arguments, env=None):
        super().__init__(daemon.unix, "t", "--window", 1, "--depth", 1000000, *arguments, env=env)
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)


def subscription(daemon, policy):
    rows = [row for row in stats(daemon)["subscriptions"] if row["policy"] == policy]
    assert len(rows) == 1, rows
    row = rows[0]
    assert row["matched"] == row["delivered"] + row["dropped"] + row["queued"], row
    return row


def test_queued(folder):
    """One who does not read loses by its policy what is beyond the limit of its user, with that reason;
    another user, and other subscribers of the same one, get everything."""
    n, size, most = 300, 10 * KIB, MIB
    for policy in ["drop-oldest", "drop-newest"]:
        with Daemon(*limit(f"{ME} queued={most}")) as daemon:
            stopped = Stopped(daemon, "--policy", policy)
            other = Sub(daemon.tcp, "t", "--count", n)
            pub(daemon.tcp, "t", folder, size, "--repeat", n)
            assert len(other.finish()) == n
            row = subscription(daemon, policy)
            assert row["dropped_by"]["limit"] == row["dropped"] > n / 2, row
            used = identity(daemon, ME)["queued_bytes"]
            assert most - 2 * size < used <= most, used
            assert row["queued"] * size < used < row["queued"] * (size + KIB), (row, used)
            assert stats(daemon)["counters"]["dropped_limit"] == row["dropped"]
            stopped.go_on()
            while row["queued"] > 0:
                row = subscription(daemon, policy)
            lines = stopped.interrupt()
            sequences = [int(line.split("\t")[1]) for line in lines]
            assert len(sequences) == n - row["dropped"], (len(sequences), row)
            assert (sequences[-1] == n) == (policy == "drop-oldest"), sequences
            assert ME not in {row["identity"] for row in stats(daemon)["identities"]}


def test_queued_latest(folder):
    with Daemon(*limit(f"{ME} queued=100K")) as daemon:
        stopped = Stopped(daemon)
        pub(daemon.tcp, "t", folder, 10 * KIB, "--repeat", 50)  # it has all that its user may have
        assert subscription(daemon, "drop-oldest")["dropped_by"]["limit"] > 0
        latest = Sub(daemon.unix, "t/*", "--policy", "latest")
        latest.process.send_signal(signal.SIGSTOP)
        for i in range(5):
            pub(daemon.tcp, f"t/{i}", folder, 30 * KIB)
            pub(daemon.tcp, f"t/{i}", folder, 60 * KIB)
        row = subscription(daemon, "latest")
        assert row["dropped_by"]["limit"] >= 8, row
        assert identity(daemon, ME)["queued_bytes"] <= 100 * KIB
        for sub in [stopped, latest]:
            sub.process.kill()
            sub.process.communicate()


def test_queued_disconnect(folder):
    with Daemon(*limit(f"{ME} queued=64K")) as daemon:
        stopped = Stopped(daemon, "--policy", "disconnect")
        pub(daemon.tcp, "t", folder, 10 * KIB, "--repeat", 10)
        stopped.go_on()
        stopped.finish(check=1)
        assert f"the limit is 65536 bytes queued for {ME}" in stopped.said, stopped.said


def test_queued_block(folder):
    """The publisher waits, and nothing is lost."""
    n = 200
    with Daemon(*limit(f"{ME} queued=64K")) as daemon:
        stopped = Stopped(daemon, "--policy", "block", "--count", n)
        blob = put(folder, "stream", bytes(10 * KIB))
        stream = subprocess.Popen([ndbus_run.NDBUS, "pub", "t", blob, "--dtype", "uint8", "--repeat", str(n),
                                   "--block", "--url", daemon.tcp])
        until(lambda: subscription(daemon, "block")["queued"] > 6)
        done = pub(daemon.tcp, "t", folder, 1, "--timeout", 0.3, check=None)
        assert stream.poll() is None and identity(daemon, ME)["queued_bytes"] <= 64 * KIB
        stopped.go_on()
        assert stream.wait(ndbus_run.DEADLINE) == 0
        lines = [line for line in stopped.finish() if line.split("\t")[4] == str(10 * KIB)]
        assert done.returncode in (0, 1)
        assert [int(line.split("\t")[1]) for line in lines] == list(range(1, len(lines) + 1))
        assert len(lines) >= n - 1, len(lines)


def test_queued_is_what_waits(folder):
    """Subscribers of one user who read lose nothing, though all of them are handed more at a time than
    may wait. What comes at all is no more than the socket of each holds: it may be read late."""
    n, n_subs = 12, 12
    with Daemon(*limit(f"{ME} queued=64K")) as daemon:
        subs = [Sub(daemon.unix, "t", "--policy", "drop-newest", "--count", n) for _ in range(n_subs)]
        pub(daemon.tcp, "t", folder, 10 * KIB, "--repeat", n, "--rate", 1000)
        for sub in subs:
            lines = sub.finish()
            assert [int(line.split("\t")[1]) for line in lines] == list(range(1, n + 1))


def test_queued_group(folder):
    """A group's queue is its oldest member's; when that leaves, the next one's."""
    secret = put(folder, "lab", "secret of the laboratory", mode=0o600)
    env = {"NDBUS_TOKEN": f"lab:{secret}"}
    with Daemon("--token", f"lab {secret}", *limit(f"{ME} queued=100K")) as daemon:
        first = Sub(daemon.unix, "t", "--group", "g", "--window", 1)
        second = Sub(daemon.tcp, "t", "--group", "g", "--window", 1, env=env)
        for sub in [first, second]:
            sub.process.send_signal(signal.SIGSTOP)
        pub(daemon.tcp, "t", folder, 10 * KIB, "--repeat", 50, env=env)

        def rows():
            found = json.loads(run("stat", "--json", url=daemon.tcp, env=env, check=0).out)
            return {row["identity"]: row["queued_bytes"] for row in found["identities"]}, found["groups"][0]

        used, group = rows()
        assert 80 * KIB < used[ME] <= 100 * KIB and used["token:lab"] == 0, used
        assert group["dropped_by"]["limit"] == group["dropped"] > 30, group
        first.process.kill()
        first.process.communicate()
        until(lambda: ME not in rows()[0])
        pub(daemon.tcp, "t", folder, 10 * KIB, "--repeat", 50, env=env)
        used, group = rows()
        assert used["token:lab"] > 500 * KIB, used
        second.process.kill()
        second.process.communicate()
        until(lambda: not json.loads(run("stat", "--json", url=daemon.tcp, env=env).out)["groups"])


def test_retained(folder):
    with Daemon(*limit("anyone retained=100K")) as daemon:
        pub(daemon.unix, "a", folder, 50 * KIB, "--retain")
        pub(daemon.unix, "a", folder, 60 * KIB, "--retain")  # in the place of the first
        used = identity(daemon, ME)
        assert 60 * KIB < used["retained_bytes"] < 62 * KIB and used["connections"] == 0, used
        sub = Sub(daemon.tcp, "b", "--count", 1)
        done = pub(daemon.unix, "b", folder, 50 * KIB, "--retain", check=1)
        assert "no room to retain it" in done.err and f"the limit is 102400 bytes retained for {ME}" in done.err
        assert len(sub.finish()) == 1, "delivered all the same"
        pub(daemon.tcp, "b", folder, 90 * KIB, "--retain")
        # the value of another takes the place of ours, which then is not counted any more
        pub(daemon.tcp, "a", folder, 5 * KIB, "--retain")
        assert ME not in {row["identity"] for row in stats(daemon)["identities"]}
        topics = {row["topic"] for row in stats(daemon)["topics"] if row["retained"]}
        assert topics == {"a", "b"}, topics
        run("pub", "b", "--clear", url=daemon.unix, check=0)
        assert identity(daemon, "tcp")["retained_bytes"] < 6 * KIB


def test_held(folder):
    """Blocks that subscribers of one user hold; beyond, messages come by the socket, and all come."""
    n, size, n_subs = 8, MIB, 3
    with Daemon(*limit(f"{ME} held=3M")) as daemon:
        subs = [Sub(daemon.unix, "t", "--count", n) for _ in range(n_subs)]
        for sub in subs:
            sub.process.send_signal(signal.SIGSTOP)
        publisher = subprocess.Popen([ndbus_run.NDBUS, "pub", "t", put(folder, "blob", bytes(size)), "--dtype",
                                      "uint8", "--repeat", str(n), "--url", daemon.unix])
        assert publisher.wait(ndbus_run.DEADLINE) == 0
        counters = stats(daemon)["counters"]
        if counters["shm_messages"] == 0:
            print("no shared memory here")
        else:
            held = identity(daemon, ME)["held_bytes"]
            assert 0 < held <= 3 * MIB, held
            assert counters["shm_deliveries"] <= 3 and counters["shm_fallback"] > 0, counters
            ready, _, _ = select.select([daemon.process.stderr], [], [], ndbus_run.DEADLINE)
            log = os.read(daemon.process.stderr.fileno(), 65536).decode() if ready else ""
            assert f"identity_held_max={3 * MIB}\n" in log, log
        for sub in subs:
            sub.process.send_signal(signal.SIGCONT)
        for sub in subs:
            assert len(sub.finish()) == n
        until(lambda: ME not in {row["identity"] for row in stats(daemon)["identities"]})


def reload(daemon, folder, text):
    put(folder, "c", text)
    daemon.process.send_signal(signal.SIGHUP)
    log, fd = b"", daemon.process.stderr.fileno()
    while b"reloaded" not in log:
        ready, _, _ = select.select([fd], [], [], ndbus_run.DEADLINE)
        piece = os.read(fd, 65536) if ready else b""
        assert piece, log
        log += piece
    return log.decode()


def test_reload(folder):
    config = put(folder, "c", "limit = anyone subscriptions=2\n")
    with Daemon("--config", config) as daemon:
        sub = Sub(daemon.unix, "t", "--count", 2)
        says(watch(daemon.unix, 2, check=1), "subscriptions", 3, 2, "subscriptions")
        pub(daemon.tcp, "t", folder, 1)
        log = reload(daemon, folder, f"limit = anyone subscriptions=1\nlimit = {ME} connections=9\n")
        assert "reload option=limit: the limits have changed" in log, log
        says(watch(daemon.unix, 1, check=1), "subscriptions", 2, 1, "subscriptions")
        assert "limits have changed" not in reload(
            daemon, folder, f"limit = anyone subscriptions=1\nlimit = {ME} connections=9\n")
        log = reload(daemon, folder, "limit = anyone subscriptions=9\nlimit = anyone x=1\n")
        assert "not reloaded" in log and "c:2: limit: 'x' is no limit" in log, log
        says(watch(daemon.unix, 1, check=1), "subscriptions", 2, 1, "subscriptions")
        # a size that a client was told is held against it at once all the same
        blob = put(folder, "other", bytes(1000))
        stream = subprocess.Popen([ndbus_run.NDBUS, "pub", "x", blob, "--dtype", "uint8", "--repeat", "0",
                                   "--rate", "100", "--url", daemon.unix], stderr=subprocess.PIPE)
        until(lambda: stats(daemon)["counters"]["messages_unmatched"] > 0)
        reload(daemon, folder, f"limit = {ME} message=100\n")
        until(lambda: stats(daemon)["counters"]["refused_too_big"] > 0)
        stream.send_signal(signal.SIGINT)
        _, said = stream.communicate(timeout=ndbus_run.DEADLINE)
        assert f"message: is 1000, the limit is 100 bytes of one message for {ME}" in said.decode(), said
        # what there was has gone on
        reload(daemon, folder, "")
        watch(daemon.unix, 50)
        pub(daemon.tcp, "t", folder, 2)
        assert [line.split("\t")[4] for line in sub.finish()] == ["1", "2"]


ndbus_run.run_tests(globals())
