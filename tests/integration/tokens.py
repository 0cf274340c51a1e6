#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Tokens on TCP: who gets in, who does not, and what those see who try.

The exchange is made here once more, from PROTOCOL.md 4.6 and with Python's hmac, as a judge of its own.
"""

import hashlib
import hmac
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import ndbus_run
from ndbus_run import Daemon, Sub, run

SECRET = b"correct horse battery staple"
HELLO = b"NDBUS\0\1\1" + bytes(8)
CONNECT, WELCOME, AUTH, ERROR, PING, PONG = 1, 2, 3, 4, 5, 6


def put(folder, name, data, mode=0o600):
    return ndbus_run.put(folder, name, data, mode)


def token(name, path):
    return {"NDBUS_TOKEN": f"{name}:{path}"}


def pack(value):
    if isinstance(value, dict):
        return bytes([0x80 + len(value)]) + b"".join(pack(k) + pack(v) for k, v in value.items())
    if isinstance(value, list):
        return bytes([0x90 + len(value)]) + b"".join(map(pack, value))
    if isinstance(value, bytes):
        return b"\xc4" + bytes([len(value)]) + value
    return b"\xd9" + bytes([len(value)]) + value.encode()


def packet(kind, header=b"", sequence=1):
    return struct.pack("<BBHIIIQQQQQII", kind, 0, 0, len(header), 0, 0, 0, 0, 0, sequence, 0, 0, 0) + header


def find_bytes(header, key):
    at = header.index(bytes([0xa0 + len(key)]) + key.encode()) + 1 + len(key)
    assert header[at] == 0xc4, header
    return header[at + 2:at + 2 + header[at + 1]]


class Raw:
    """A client that speaks by hand."""

    def __init__(self, url):
        host, port = url[len("tcp://"):].rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), ndbus_run.DEADLINE)
        self.send(HELLO)
        self.hello = self.read(16)

    def send(self, data):
        self.socket.sendall(data)

    def read(self, n):
        data = b""
        while len(data) < n:
            piece = self.socket.recv(n - len(data))
            if not piece:
                return None
            data += piece
        return data

    def next(self):
        prelude = self.read(64)
        if prelude is None:
            return None, None
        kind, n_header, n_meta, n_body = prelude[0], *struct.unpack("<II", prelude[4:12]), \
            *struct.unpack("<Q", prelude[16:24])
        return kind, self.read(n_header + n_meta + n_body)

    def connect(self, name):
        header = {"features": []}
        if name is not None:
            header["token"] = name
        self.send(packet(CONNECT, pack(header)))
        return self.next()

    def text(self, side, name, nonce, own):
        return b"ndbus token 1\0\0\0" + side + HELLO + self.hello + nonce + own + name.encode()

    def proof(self, name, nonce, own, secret, side=b"C"):
        return hmac.new(secret, self.text(side, name, nonce, own), hashlib.sha256).digest()

    def begin(self, name):
        kind, header = self.connect(name)
        assert kind == AUTH, (kind, header)
        nonce = find_bytes(header, "nonce")
        assert len(nonce) == 32
        return nonce

    def prove(self, own, proof):
        self.send(packet(AUTH, pack({"nonce": own, "proof": proof})))
        return self.next()

    def denied(self, answer):
        kind, header = answer
        assert kind == ERROR and b"\xa4code\x2d" in header, answer  # 45
        assert self.next() == (None, None), "not closed"


def daemon_with(folder, *options):
    return Daemon("--token", "lab " + put(folder, "lab", SECRET + b"\n"), *options)


def wait_log(daemon, says):
    """Until the daemon has logged it; what it logged up to there."""
    log = b""
    while says not in log:
        piece = os.read(daemon.process.stderr.fileno(), 65536)
        assert piece, log
        log += piece
    return log.decode()


def test_who_gets_in(folder):
    right, wrong = put(folder, "right", SECRET), put(folder, "wrong", SECRET + b"!")
    with daemon_with(folder) as daemon:
        run("ping", url=daemon.tcp, env=token("lab", right), check=0)
        run("ping", url=daemon.unix, check=0)  # the kernel vouches
        run("ping", url=daemon.unix, env=token("lab", "/none"), check=0)
        done = run("ping", url=daemon.tcp, env={"NDBUS_TOKEN": ""}, check=1)
        assert "not permitted" in done.err and "who comes by TCP has to prove one" in done.err, done.err
        for name, path in [("lab", wrong), ("other", right)]:
            done = run("ping", url=daemon.tcp, env=token(name, path), check=1)
            assert "not permitted" in done.err and f"token: '{name}' was not proved" in done.err, done.err
        # messages go both ways
        sub = Sub(daemon.tcp, "t", "--count", 1, env=token("lab", right))
        run("pub", "t", right, "--dtype", "uint8", url=daemon.tcp, env=token("lab", right), check=0)
        assert len(sub.finish()) == 1
        assert json.loads(run("stat", "--json", url=daemon.unix, check=0).out)["counters"]["denied"] == 3


def test_the_exchange(folder):
    with daemon_with(folder) as daemon:
        raw = Raw(daemon.tcp)
        nonce, own = raw.begin("lab"), os.urandom(32)
        kind, header = raw.prove(own, raw.proof("lab", nonce, own, SECRET))
        assert kind == WELCOME, (kind, header)
        assert find_bytes(header, "proof") == raw.proof("lab", nonce, own, SECRET, b"D")
        raw.send(packet(PING, sequence=7))
        assert raw.next()[0] == PONG

        other = Raw(daemon.tcp)
        assert other.begin("lab") != nonce
        # what was right once is not right again
        other.denied(other.prove(own, raw.proof("lab", nonce, own, SECRET)))
        # nor is the daemon's own proof, nor one for another name
        other = Raw(daemon.tcp)
        nonce = other.begin("lab")
        other.denied(other.prove(own, other.proof("lab", nonce, own, SECRET, b"D")))
        other = Raw(daemon.tcp)
        nonce = other.begin("labs")
        other.denied(other.prove(own, other.proof("labs", nonce, own, SECRET)))
        other = Raw(daemon.tcp)
        nonce = other.begin("lab")
        other.denied(other.prove(nonce, bytes(32)))
        # each bit of the proof matters
        for bit in [0, 100, 255]:
            other = Raw(daemon.tcp)
            nonce = other.begin("lab")
            proof = bytearray(other.proof("lab", nonce, own, SECRET))
            proof[bit // 8] ^= 1 << bit % 8
            other.denied(other.prove(own, bytes(proof)))


def test_what_breaks_the_order(folder):
    own = bytes(32)
    with daemon_with(folder) as daemon:
        for field, size in [("nonce", 31), ("nonce", 33), ("proof", 0), ("proof", 31)]:
            raw = Raw(daemon.tcp)
            raw.begin("lab")
            raw.send(packet(AUTH, pack({"nonce": own, "proof": own, field: bytes(size)})))
            kind, header = raw.next()
            assert kind == ERROR and b"is %d bytes, must be 32 bytes" % size in header, header
        for name, send in [
                ("AUTH first", lambda r: r.send(packet(AUTH, pack({"nonce": own, "proof": own})))),
                ("PING for AUTH", lambda r: (r.begin("lab"), r.send(packet(PING)))),
                ("CONNECT twice", lambda r: (r.begin("lab"), r.send(packet(CONNECT, pack({"features": []}))))),
                ("no proof", lambda r: (r.begin("lab"), r.send(packet(AUTH, pack({"nonce": own}))))),
                ("what does not fit", lambda r: (r.begin("lab"), r.send(
                    struct.pack("<BBHIIIQQQQQII", AUTH, 0, 0, 1 << 20, 0, 0, 0, 0, 0, 1, 0, 0, 0)))),
                ("meta", lambda r: (r.begin("lab"), r.send(
                    struct.pack("<BBHIIIQQQQQII", AUTH, 0, 0, 90, 1 << 20, 0, 0, 0, 0, 1, 0, 0, 0)))),
                ("a text", lambda r: (r.begin("lab"), r.send(packet(AUTH, pack(
                    {"nonce": own, "proof": "x" * 32}))))),
        ]:
            raw = Raw(daemon.tcp)
            send(raw)
            kind, header = raw.next()
            assert kind == ERROR, (name, kind, header)
            assert raw.next() == (None, None), name
        # after WELCOME there is nothing to prove
        raw = Raw(daemon.tcp)
        nonce = raw.begin("lab")
        kind, _ = raw.prove(own, raw.proof("lab", nonce, own, SECRET))
        assert kind == WELCOME
        assert raw.prove(own, own)[0] == ERROR
        # one that stops in the middle is told in time, and the others go on meanwhile
        slow = Raw(daemon.tcp)
        slow.begin("lab")
        slow.send(packet(AUTH, pack({"nonce": own, "proof": own}))[:70])
        gone = Raw(daemon.tcp)
        gone.begin("lab")
        gone.socket.close()
        right = put(folder, "right", SECRET)
        run("ping", url=daemon.tcp, env=token("lab", right), check=0)
        kind, header = slow.next()
        assert kind == ERROR and b"\xa4code\x1b" in header, header  # 27, HANDSHAKE


def test_the_log_says_what_was_claimed(folder):
    """As far as it is text: a name of the client's choice must not look like another part of the line."""
    with daemon_with(folder) as daemon:
        raw = Raw(daemon.tcp)
        raw.begin('la" b\nc')
        raw.denied(raw.prove(bytes(32), bytes(32)))
        assert "'la? b?c' was not proved\n" in wait_log(daemon, b"was not proved")


def test_many_that_guess(folder):
    """More at a time than are made to wait: each is told, and the daemon serves who belongs there."""
    right = put(folder, "right", SECRET)
    with daemon_with(folder) as daemon:
        raws = [Raw(daemon.tcp) for _ in range(200)]
        for raw in raws:
            raw.begin("lab")
        for raw in raws:
            raw.send(packet(AUTH, pack({"nonce": bytes(32), "proof": bytes(32)})))
        run("ping", url=daemon.tcp, env=token("lab", right), check=0)
        for raw in raws:
            raw.denied(raw.next())
        assert json.loads(run("stat", "--json", url=daemon.unix, check=0).out)["counters"]["denied"] == 200


def test_a_daemon_that_does_not_know_it(folder):
    """It takes any proof, and is refused by who has a token."""
    right = put(folder, "right", SECRET)
    welcome = bytes.fromhex(
        "88a86665617475726573 90a6736f75726365 01a56772616e74ce00010000ab6d6573736167655f6d6178 "
        "01aa6865616465725f6d617801a86d6574615f6d617801a864696d735f6d617801b1737562736372697074 "
        "696f6e735f6d617801".replace(" ", ""))
    welcome = b"\x89" + welcome[1:] + b"\xa7shm_max\0"
    for asks in [False, True]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            def serve():
                peer, _ = server.accept()
                with peer:
                    peer.recv(16)
                    peer.sendall(b"NDBUS\0\1\0\1\1" + bytes(6))
                    peer.recv(4096)
                    if asks:
                        peer.sendall(packet(AUTH, pack({"nonce": bytes(32)})))
                        peer.recv(4096)
                    peer.sendall(packet(WELCOME, welcome))
                    peer.recv(4096)
            thread = threading.Thread(target=serve)
            thread.start()
            url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
            done = run("ping", url=url, env=token("lab", right), check=1)
            assert "the daemon did not prove that it knows the token lab" in done.err, done.err
            thread.join()


def test_files(folder):
    good = put(folder, "good", SECRET)
    os.symlink(good, os.path.join(folder, "link"))
    os.mkfifo(os.path.join(folder, "fifo"), 0o600)
    cases = [
        (put(folder, "open", SECRET, 0o644), "has mode 0644"),
        (put(folder, "group", SECRET, 0o660), "has mode 0660"),
        (put(folder, "short", b"x" * 15 + b"\n"), "holds a secret of 15 bytes, 16 to 1024 are wanted"),
        (put(folder, "long", b"x" * 1025), "holds a secret of 1025 bytes"),
        (os.path.join(folder, "link"), "is a symbolic link"),
        (os.path.join(folder, "none"), "No such file or directory"),
        (folder, "is not a file"),
        (os.path.join(folder, "fifo"), "is not a file"),
    ]
    for path, says in cases:
        done = subprocess.run([ndbus_run.NDBUSD, "--check-config", "--token", f"lab {path}"],
                              capture_output=True, text=True, timeout=ndbus_run.DEADLINE)
        assert done.returncode == 2 and f"{path}: {says}" in done.stderr, done.stderr
    for options, says in [(["--token", "lab"], "'lab' is not NAME FILE"),
                          (["--token", f"a/b {good}"], "is not NAME FILE"),
                          (["--token", f"lab {good}", "--token", f"lab {good}"], "'lab' is there twice"),
                          (["--token", f"lab {good}", "--allow", "token:labs publish"],
                           "allow: there is no token 'labs'")]:
        done = subprocess.run([ndbus_run.NDBUSD, "--check-config", *options], capture_output=True,
                              text=True, timeout=ndbus_run.DEADLINE)
        assert done.returncode == 2 and says in done.stderr, done.stderr
    with daemon_with(folder) as daemon:
        for path, says in [(os.path.join(folder, "open"), "others may read it"),
                           (os.path.join(folder, "none"), "No such file"), (folder, "is not a file"),
                           (os.path.join(folder, "short"), "holds a secret of 15 bytes")]:
            done = run("ping", url=daemon.tcp, env=token("lab", path), check=1)
            assert says in done.err, done.err
        done = run("ping", url=daemon.tcp, env={"NDBUS_TOKEN": "lab"}, check=1)
        assert "NDBUS_TOKEN: 'lab' is not NAME:FILE" in done.err, done.err


def test_listeners(folder):
    """Beyond loopback with tokens, or if the operator insists."""
    path = put(folder, "lab", SECRET)
    for check in [[], ["--check-config"]]:
        done = subprocess.run([ndbus_run.NDBUSD, "--listen", "tcp://0.0.0.0:0", *check],
                              capture_output=True, text=True, timeout=ndbus_run.DEADLINE)
        assert done.returncode == 2 and "give --token, or say --insecure-anyone" in done.stderr, done
    with Daemon("--token", f"lab {path}", "--listen", "tcp://0.0.0.0:0") as daemon:
        run("ping", url=daemon.tcp, env=token("lab", path), check=0)
    with Daemon("--token", f"lab {path}", "--insecure-anyone") as daemon:
        run("ping", url=daemon.tcp, check=0)
        run("ping", url=daemon.tcp, env=token("lab", path), check=0)


def test_rights(folder):
    one, two = put(folder, "one", b"1" * 16), put(folder, "two", b"2" * 16)
    blob = put(folder, "blob", b"x")
    with Daemon("--token", f"one {one}", "--token", f"two {two}", "--allow", "token:one publish a/**",
                "--allow", "token:two subscribe **", "--allow", "anyone stats") as daemon:
        sub = Sub(daemon.tcp, "**", "--count", 1, env=token("two", two))
        run("pub", "a/b", blob, "--dtype", "uint8", url=daemon.tcp, env=token("one", one), check=0)
        assert len(sub.finish()) == 1
        done = run("pub", "a/b", blob, "--dtype", "uint8", url=daemon.tcp, env=token("two", two), check=1)
        assert "the right 'publish' on a/b is missing" in done.err, done.err
        done = run("pub", "a/b", blob, "--dtype", "uint8", url=daemon.unix, check=1)
        assert "the right 'publish' on a/b is missing" in done.err, done.err
        run("stat", url=daemon.unix, check=0)


def reload(daemon, says):
    daemon.process.send_signal(signal.SIGHUP)
    return wait_log(daemon, says)


def test_reload(folder):
    one, two = put(folder, "one", b"1" * 16), put(folder, "two", b"2" * 16)
    mine = put(folder, "mine", b"1" * 16)
    config = put(folder, "c", f"token = one {one}\ntoken = two {two}\n".encode())
    with Daemon("--config", config) as daemon:
        keeps, goes = (Sub(daemon.tcp, "t", "--count", 1, env=token(*t)) for t in [("two", two), ("one", mine)])
        put(folder, "one", b"3" * 16)
        reload(daemon, b"reloaded")
        goes.finish(check=1)
        assert "not permitted" in goes.said, goes.said
        run("ping", url=daemon.tcp, env=token("one", one), check=0)
        run("ping", url=daemon.tcp, env=token("one", mine), check=1)
        put(folder, "c", b"")
        assert "the last one can be taken away at the next start only" in reload(daemon, b"stay in force")
        run("pub", "t", put(folder, "blob", b"x"), "--dtype", "uint8", url=daemon.unix, check=0)
        assert len(keeps.finish()) == 1


ndbus_run.run_tests(globals())
