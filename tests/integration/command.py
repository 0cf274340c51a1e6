#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The ndbus command from outside: what it prints, writes, refuses, and survives."""

import fcntl
import json
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import ndbus_run
from ndbus_run import Daemon, Sub, put, run


def npy(descr, shape, data, fortran=False):
    """A file as NumPy would write it, without NumPy."""
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


def get(*parts):
    with open(os.path.join(*parts), "rb") as f:
        return f.read()


def msgpack(value):
    """Enough of it for headers."""
    if isinstance(value, dict):
        return bytes([0x80 | len(value)]) + b"".join(msgpack(k) + msgpack(v) for k, v in value.items())
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(msgpack, value))
    if isinstance(value, str):
        return bytes([0xa0 | len(value)]) + value.encode()
    return b"\xcf" + struct.pack(">Q", value)


def packet(kind, header, meta=b"", n_body=0):
    """Prelude, header and meta of a connection's first of its kind."""
    header = msgpack(header)
    return struct.pack("<BBHIIIQQQQQII", kind, 0, 0, len(header), len(meta), 0, n_body, 0, 0, 1, 0, 0,
                       0) + header + meta


def record(frame, body, meta=b""):
    """An ndbus record of one frame, as a peer of any kind could make it."""
    text = packet(16, {"topic": "r", "frames": [dict(frame, bytes=len(body))]}, meta, len(body))
    text += bytes(-len(text) % 64) + body + bytes(-len(body) % 64)
    return b"\x89NDBUS\r\n\1" + bytes(7) + struct.pack("<Q", 64 + len(text)) + bytes(40) + text


FLOATS = npy("<f4", (3,), bytes.fromhex("0000c03f000010c000004040"))  # T01
BRAIN = npy("|V2", (6,), bytes.fromhex("0000803f00404040c0bf203e"))  # T04, as NumPy sees it


def test_usage(folder):
    for arguments, says in [
        ([], "a command is missing; 'ndbus --help' lists them"),
        (["frob"], "frob: no such command; 'ndbus --help' lists them"),
        (["pub", "topic"], "1 of 2 arguments are there; the usage is: ndbus pub TOPIC FILE..."),
        (["pub", "t", "f", "--clear"], "--clear: takes no FILE; f is one"),
        (["pub", "t", "f", "--retian"], "--retian: no such option; did you mean --retain?"),
        (["pub", "t", "f", "--meta", "x"], "--meta: 'x' is no KEY=VALUE; exposure=0.5 would be one"),
        (["pub", "t", "f", "--meta", "x=1", "--meta", "x=2"], "--meta: the key 'x' is there twice"),
        (["pub", "t", "-", "--repeat", "2"], "--repeat: stdin can be read only once; give a file"),
        (["sub", "t", "--policy", "lossy"],
         "--policy: 'lossy' is not known; give one of drop-oldest|drop-newest|latest|block|disconnect"),
        (["pack", "f"], "--output: is missing; say where the records go, as in -o FILE.ndb"),
        (["record", "t"], "--output: is missing; say where the records go, as in -o FILE.ndb"),
        (["replay", "-", "--repeat", "2"], "--repeat: stdin can be read only once; give a file"),
        (["replay", "f", "--rate", "-1"], "--rate: -1 is out of range; give 0 to 1000000"),
        (["replay", "f", "--topic", "a//b"], "--topic: pattern: has an empty segment at byte 2"),
        (["unpack", "f"], "--output: is missing; say where the arrays go, as in -o DIR"),
        (["pub", "t", "f", "--dtype", "foo"],
         "--dtype: 'foo' is no dtype; float32, >uint16, float32x4, datetime64[ns], bytes[16], raw or "
         "name:BITS would be one"),
        (["pack", "f", "-o", "-", "--dtype", ">int8"],
         "--dtype: '>int8': int8 has no byte order; leave the > away"),
        (["request", "t", "f", "--dtype", "datetime64"],
         "--dtype: 'datetime64' needs a unit, as in datetime64[ns] or datetime64[25us]"),
        (["pub", "t", "f", "--dtype", "record[24]"],
         "--dtype: 'record[24]' would need the record's fields; give an .npy file, which has them, or "
         "opaque[BYTES]"),
        (["pub", "t", "f", "--dtype", "datetime64[xx]"],
         '--dtype: "xx" is no unit: Y M W D h m s ms us ns ps fs as generic'),
        (["pub", "t", "f", "--shape", "2x3"],
         "--shape: '2x3' is no shape; 480,640 would be one, of at most 64 dimensions"),
        (["ping", "--count", "99999999999999999999"],
         "--count: 99999999999999999999 is out of range; give 1 to 10000000"),
        (["sub", "t", "--timeout", "1e9"], "--timeout: 1e9 is out of range; give 0 to 2147483.647 seconds"),
        (["sub", "t", "--timeout", "1e"], "--timeout: '1e' is no number; give 0 to 2147483.647 seconds"),
        (["ping", "--url", "http://x"], '--url: is "http://x"; unix:/path or tcp://host:port is wanted'),
        (["pub", "t/*", "f"], "t/*: topic: has a '*', which only patterns may have"),
        (["request", "a//b", "f"], "a//b: topic: has an empty segment at byte 2"),
        (["sub", "a//b"], "a//b: pattern: has an empty segment at byte 2"),
        (["reply", "a//b", "--exec", "cat"], "a//b: pattern: has an empty segment at byte 2"),
        (["record", "a", "a//b", "-o", "-"], "a//b: pattern: has an empty segment at byte 2"),
        (["sub", "a", "--group", ""], "--group: has 0 bytes; give a name of 1 to 255"),
        (["reply", "a", "--group", "x" * 256], "--group: has 256 bytes; give a name of 1 to 255"),
        (["sub", "a", "--window", 1 << 62], f"--window: {1 << 62} is out of range; give 1 to {(1 << 62) - 1}"),
        (["sub", "a", "--depth", 0], f"--depth: 0 is out of range; give 1 to {(1 << 63) - 1}"),
        (["stat", "x"], "x: one argument too many; the usage is: ndbus stat "),
    ]:
        done = run(*arguments, check=2)
        assert done.out == "", done.out
        lines = done.err.splitlines()
        assert len(lines) == 1 and lines[0].endswith(says.rstrip()), (arguments, done.err)
    for command in ["", "pub", "sub", "record", "replay", "info", "pack", "unpack", "request", "reply", "stat",
                    "ping", "bench"]:
        done = run(*[w for w in [command, "--help"] if w], check=0)
        assert done.out.startswith("usage: ndbus ") and done.err == "", (command, done.out)
    assert run("--version", check=0).out.startswith("ndbus "), "version"


def test_manual(folder):
    """The page and --help name the same options."""
    page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "client", "man",
                        "ndbus.1")
    sections = get(page).decode().split("\n.Ss ndbus ")[1:]
    assert [s.split()[0] for s in sections] == [
        "pub", "sub", "record", "replay", "info", "request", "reply", "pack", "unpack", "stat", "ping",
        "bench"]
    for section in sections:
        command = section.split()[0]
        section = section.split("\n.Sh ")[0]
        listed = re.findall(r"^\.It Fl -([a-z-]+)", section, re.M)
        helped = re.findall(r"^  --([a-z-]+)", run(command, "--help", check=0).out, re.M)
        helped.remove("help")
        assert sorted(helped) == listed, f"{command}: {sorted(helped)} in --help, {listed} in the page"


def run_closed(redirections, *arguments, url=""):
    """The command with some of its streams closed, as a shell does it."""
    return subprocess.run(["/bin/sh", "-c", f'exec "$@" {redirections}', "sh", ndbus_run.NDBUS,
                           *map(str, arguments)], capture_output=True, input=b"",
                          env=dict(os.environ, NDBUS_URL=url), timeout=ndbus_run.DEADLINE)


def test_closed_streams(folder):
    """What is printed never goes into the connection, nor is it lost without a word."""
    a = put(folder, "a.npy", FLOATS)
    packed = os.path.join(folder, "a.ndb")
    run("pack", a, "-o", packed, check=0)
    with Daemon() as daemon:
        for arguments in [["sub", "z/**", "--count", 1], ["request", "z", a], ["stat"], ["ping"],
                          ["bench", "--count", 1], ["info", packed],
                          ["unpack", packed, "-o", os.path.join(folder, "never")],
                          ["pack", a, "-o", "-"], ["record", "z", "-o", "-"], ["--help"], ["--version"],
                          ["sub", "--help"]]:
            done = run_closed(">&-", *arguments, url=daemon.unix)
            assert done.returncode == 1 and b"stdout: is closed" in done.stderr, (arguments, done)
        for arguments in [["pub", "z", "-"], ["replay", "-"], ["pack", "-", "-o", packed], ["info", "-"]]:
            done = run_closed("<&-", *arguments, url=daemon.unix)
            assert done.returncode == 1 and b"stdin: is closed" in done.stderr, (arguments, done)
        for arguments in [["--help"], ["--version"], ["ping"]]:
            done = run_closed(">/dev/full", *arguments, url=daemon.unix)
            assert done.returncode == 1 and b"No space left" in done.stderr, (arguments, done)
        sub = Sub(daemon.unix, "z", "--count", 1)
        done = run_closed("<&- >&- 2>&-", "pub", "z", a, url=daemon.unix)
        assert done.returncode == 0, done
        assert sub.finish()[0].startswith("z\t1\tfloat32\t[3]"), sub.said
        counters = json.loads(run("stat", "--json", url=daemon.unix, check=0).out)["counters"]
        assert counters["messages_in"] == 1 and counters["protocol_errors"] == 0, counters


def test_daemon_with_closed_streams(folder):
    with Daemon(shell='exec "$@" <&- >&- 2>&-') as daemon:
        run("ping", "--count", 1, url=daemon.unix, check=0)
        for number in range(3):
            assert os.readlink(f"/proc/{daemon.process.pid}/fd/{number}") == "/dev/null", number


def test_no_daemon(folder):
    put(folder, "a.npy", FLOATS)
    url = "unix:" + os.path.join(folder, "nobody")
    done = run("ping", url="http://x", check=1)
    assert 'ndbus ping: NDBUS_URL: is "http://x"' in done.err, done.err
    for arguments in [["ping"], ["stat"], ["sub", "t"], ["pub", "t", os.path.join(folder, "a.npy")],
                      ["bench", "--count", "1"]]:
        done = run(*arguments, url=url, check=1)
        assert "not connected to a daemon" in done.err and "nobody" in done.err, done.err


def test_pack(folder):
    a = put(folder, "a.npy", FLOATS)
    b = put(folder, "b.npy", BRAIN)
    raw = put(folder, "raw.bin", b"\1\2\3\4")
    packed = os.path.join(folder, "all.ndb")
    out = os.path.join(folder, "out")

    # the same name twice; every kind of file; records inside a record file are taken over
    run("pack", a, b, "-o", packed, "--meta", "n=5", "--meta", "s=x y", "--meta", "t=true",
        "--meta", 'q="5"', "--meta", "f=-2.5e3", check=0)
    run("pack", packed, a, "-o", os.path.join(folder, "more.ndb"), check=0)
    done = run("unpack", os.path.join(folder, "more.ndb"), "-o", out, "--meta", check=0)
    lines = [line.split("\t") for line in done.out.splitlines()]
    meta = {"n": 5, "s": "x y", "t": True, "q": "5", "f": -2500.0}
    assert lines[0] == ["a.npy", "float32", "[3]"], lines
    assert lines[1][0] == "meta" and json.loads(lines[1][1]) == meta, lines
    assert lines[2] == ["b.npy", "opaque[2]", "[6]"], lines
    assert lines[4] == ["a-3.npy", "float32", "[3]"], lines
    assert get(out, "a.npy") == get(out, "a-3.npy") == FLOATS
    assert get(out, "b.npy") == BRAIN

    # a pipe at that path is written to; no file takes its place
    pipe = os.path.join(folder, "pipe")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    run("pack", a, "-o", pipe, check=0)
    assert os.read(reader, 65536) == run("pack", a, "-o", "-", check=0).stdout
    os.close(reader)
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)

    # raw bytes; and the true dtype of opaque ones is kept, and told when it is written
    run("pack", raw, "-o", packed, "--dtype", ">int16", "--shape", "2,1", check=0)
    assert run("unpack", packed, "-o", out, check=0).out == "raw.bin.npy\t>int16\t[2,1]\n"
    run("pack", b, "-o", packed, "--dtype", "bfloat16", check=0)
    done = run("unpack", packed, "-o", out, check=0)
    assert done.out == "b.npy\tbfloat16\t[6]\tnote=bfloat16 written as |V2\n", done.out
    assert get(out, "b.npy") == BRAIN

    # lanes, and bytes without a dtype, are read as they are written
    for dtype, shape in [("float32x2", "[2]"), ("raw", "[16]"), ("opaque[16]", "[1]"), ("uint8x16", "[1]")]:
        run("pack", put(folder, "16", bytes(16)), "-o", packed, "--dtype", dtype, check=0)
        done = run("unpack", packed, "-o", out, check=0)
        assert done.out.split("\t")[1:3] in [[dtype, shape], [dtype, shape + "\n"]], done.out
    run("pack", put(folder, "V8.npy", npy("|V8", (2,), bytes(16))), "-o", packed, "--dtype", "float32x2", check=0)

    # pipes on both sides, several arrays behind one another
    done = run("pack", "-", "-o", "-", input=FLOATS + BRAIN, check=0)
    done = run("unpack", "-", "-o", out, input=done.stdout, check=0)
    assert [l.split("\t")[0] for l in done.out.splitlines()] == ["1.npy", "2.npy"], done.out
    assert get(out, "1.npy") == FLOATS and get(out, "2.npy") == BRAIN


def test_files_that_are_cut(folder):
    a = put(folder, "a.npy", FLOATS)
    packed = os.path.join(folder, "a.ndb")
    run("pack", a, "-o", packed, check=0)
    one = get(packed)
    for n in range(len(one) + 1, 2 * len(one), 37):
        out = os.path.join(folder, f"out{n}")
        done = run("unpack", put(folder, "cut.ndb", (one + one)[:n]), "-o", out, check=1)
        assert done.out.splitlines()[0].startswith("a.npy\t") and get(out, "a.npy") == FLOATS
        assert os.listdir(out) == ["a.npy"], os.listdir(out)
        assert f"begins at byte {len(one)} and ends at byte {n}" in done.err, done.err


def test_files_that_are_refused(folder):
    for name, data, says in [
        ("o.npy", npy("|O", (1,), b"\x80\5K\1."), "pickled Python objects are never decoded"),
        ("long.npy", npy("<f16", (1,), bytes(16)), "long double"),
        ("short.npy", FLOATS[:-1], "the file ends at byte 139"),
        ("z.npz", b"PK\3\4" + bytes(60), "is an .npz archive; unzip it"),
        ("text.txt", b"hello, world", "is neither .npy nor an ndbus record"),
        ("empty.npy", b"", "is empty"),
        ("tail.npy", FLOATS + b"xyz", "behind message 1 there is something that is no message"),
        ("bad.ndb", b"\x89NDBUS\r\n" + bytes(200), "record: "),
    ]:
        path = put(folder, name, data)
        done = run("pack", path, "-o", os.path.join(folder, "never.ndb"), check=1)
        assert f"ndbus pack: {path}: " in done.err and says in done.err, done.err
    assert not os.path.exists(os.path.join(folder, "never.ndb"))
    assert not [n for n in os.listdir(folder) if n.endswith(".tmp")], os.listdir(folder)
    done = run("pack", folder, "-o", os.path.join(folder, "never.ndb"), check=1)
    assert "is a directory" in done.err, done.err
    done = run("pack", put(folder, "r", b"12345"), "-o", "-", "--dtype", "int16", check=1)
    assert "5 bytes are no whole number of int16" in done.err, done.err
    done = run("pack", os.path.join(folder, "r"), "-o", "-", "--dtype", "int8", "--shape", "4", check=1)
    assert "wants 4 bytes, there are 5" in done.err, done.err


def test_names_stay_in_their_folder(folder):
    """Names of frames and topics come from others."""
    import pathlib
    packed = os.path.join(folder, "evil.ndb")
    names = ["..", "../../up.npy", "/abs", ".hidden", "a/b", "x" * 250, "%41"]
    data = b""
    for name in names:
        safe = os.path.join(folder, "n.npy")
        put(folder, "n.npy", FLOATS)
        run("pack", safe, "-o", packed, check=0)
        record = get(packed)
        # the frame's name stands in the header; rebuild it by packing under a name of equal length
        stem = "n" * len(name)
        if len(stem) < 250:
            os.rename(safe, os.path.join(folder, stem + ".npy"))
            run("pack", os.path.join(folder, stem + ".npy"), "-o", packed, check=0)
            record = get(packed)
            assert record.count(stem.encode()) >= 1
            record = record.replace(b"\xa4name" + bytes([0xa0 + len(stem)]) + stem.encode(),
                                    b"\xa4name" + bytes([0xa0 + len(name)]) + name.encode())
            assert name.encode() in record
            data += record
    path = put(folder, "evil.ndb", data)
    out = os.path.join(folder, "deep", "er")
    os.makedirs(out)
    run("unpack", path, "-o", out, check=0)
    found = sorted(os.listdir(out))
    assert found == sorted(["%2E..npy", "%2E.%2F..%2Fup.npy.npy", "%2Fabs.npy", "%2Ehidden.npy",
                            "a%2Fb.npy", "%2541.npy"]), found
    assert os.listdir(os.path.join(folder, "deep")) == ["er"]

    with Daemon() as daemon:
        out = os.path.join(folder, "deep", "sub")
        topics = ["../../x", "a/../../y", "./z", "ok/" + "s" * 200]
        sub = Sub(daemon.unix, "**", "--count", len(topics), "--output", out)
        floats = put(folder, "f.npy", FLOATS)
        for topic in topics:
            run("pub", topic, floats, url=daemon.unix, check=0)
        for line in sub.finish():
            assert "file=" + out + "/" in line, line
        assert sorted(os.listdir(os.path.join(folder, "deep"))) == ["er", "sub"]
        assert len(list(pathlib.Path(out).rglob("*.npy"))) == len(topics)


def test_lines(folder):
    a = put(folder, "a.npy", FLOATS)
    b = put(folder, "b.npy", BRAIN)
    with Daemon() as daemon:
        run("pub", "t/old", a, "--retain", url=daemon.unix, check=0)
        sub = Sub(daemon.tcp, "t/**", "--count", 4, "--meta", "--output", os.path.join(folder, "o"))
        assert sub.read_line().split("\t")[7] == "retained"
        run("pub", "t/x", a, b, "--meta", "exposure=0.5", "--dtype", "bfloat16", url=daemon.unix,
            check=1)  # float32 cannot be renamed; the other one goes
        run("pub", "t/x", a, "--wait-subscribers", 1, "--meta", "k=\x1b[2J", url=daemon.unix, check=0)
        run("pub", "t/x", "-", "--rate", 1000, "--block", url=daemon.tcp, input=b"\0\1",
            check=1)
        run("pub", "t/x", "-", "--dtype", "uint8", "--shape", "", url=daemon.tcp, input=b"\7",
            check=0)
        lines = [line.split("\t") for line in sub.finish()]
        assert [c[:5] for c in lines] == [
            ["t/x", "1", "bfloat16", "[6]", "12"],
            ["t/x", "1", "float32", "[3]", "12"],
            ["t/x", "1", "uint8", "[]", "1"],
        ], lines
        assert all(0 <= float(c[5]) < 3600 and c[6] == "0" for c in lines), lines
        o = os.path.join(folder, "o")
        # sequence 1 of three sources: none overwrites another
        assert lines[0][7:] == [f"file={o}/t/x-1.npy", "note=bfloat16 written as |V2",
                                'meta={"exposure": 0.5}'], lines[0]
        assert lines[1][7].startswith(f"file={o}/t/x-1.") and lines[1][7] != lines[0][7], lines[1]
        assert lines[1][8] == 'meta={"k": "\\u001b[2J"}', lines[1]
        assert get(o, "t", "x-1.npy") == BRAIN and get(lines[1][7][5:]) == FLOATS

        done = run("sub", "nothing", "--timeout", "0.2", url=daemon.unix, check=0)
        assert done.out == ""
        done = run("sub", "nothing", "--timeout", "0.2", "--count", 1, url=daemon.unix, check=1)
        assert "0 of 1 came" in done.err, done.err
        done = run("pub", "nobody", a, "--wait-subscribers", 1, "--timeout", "0.2", url=daemon.unix,
                   check=1)
        assert "--wait-subscribers 1: timed out" in done.err, done.err
        for topic, status in [("a//b", 2), ("a/*", 2), ("$sys/x", 1), ("", 2)]:
            run("pub", topic, a, url=daemon.unix, check=status)
        Sub(daemon.unix, "t/**", "--no-retained").interrupt()


def test_too_big_is_told(folder):
    """T28, by the command."""
    a = put(folder, "a.npy", FLOATS)
    big = put(folder, "big", bytes((1 << 20) + 1))
    with Daemon("--message-max", "1M") as daemon:
        sub = Sub(daemon.unix, "t", "--count", 1)
        done = run("pub", "t", big, a, "--dtype", "uint8", url=daemon.unix, check=1)
        done = run("pub", "t", big, "--dtype", "uint8", url=daemon.unix, check=1)
        assert "exceeds its limit" in done.err and "1048576" in done.err, done.err
        run("pub", "t", a, url=daemon.unix, check=0)
        assert len(sub.finish()) == 1


def test_endless_input(folder):
    """Of what has no end no more is kept than a message may have."""
    a = put(folder, "a.npy", FLOATS)
    big = put(folder, "big", bytes(8 << 20))
    packed = os.path.join(folder, "big.ndb")
    run("pack", big, "--dtype", "uint8", "-o", packed, "--message-max", "1M", check=0)  # it is mapped
    with Daemon("--message-max", "1M") as daemon:
        for arguments in [["pub", "t", "/dev/zero", "--dtype", "uint8"], ["pub", "t", "-"], ["replay", "-"],
                          ["pub", "t", "/dev/zero", "--dtype", "uint8", "--shape", "1048577"]]:
            done = run(*arguments, url=daemon.unix, input=get(packed), check=1)
            assert done.err.count("\n") == 1, done.err
            assert "message 1 has more than 1048576 bytes" in done.err and "message-max" in done.err, done.err
    for arguments in [["pack", "/dev/zero", "-o", "-", "--dtype", "uint8"], ["pack", "-", "-o", "-"],
                      ["info", "-"], ["unpack", "-", "-o", folder]]:
        done = run(*arguments, "--message-max", "1M", input=get(packed), check=1)
        assert "message 1 has more than 1048576 bytes" in done.err, done.err
    done = run("pack", a, "-", "-o", "-", "--message-max", "140", input=FLOATS, check=0)
    assert run("info", "-", "--message-max", "12", input=done.stdout, check=0).out.count("messages\t2") == 1


def test_killed_while_it_writes(folder):
    """No half file stays, and what is in the way of a whole one is named."""
    a = put(folder, "a.npy", FLOATS)
    big = put(folder, "big", bytes(1 << 20))
    out = os.path.join(folder, "out.ndb")
    before = sorted(os.listdir(folder))
    pack = subprocess.Popen([ndbus_run.NDBUS, "pack", a, "-", "-o", out], stdin=subprocess.PIPE)
    pack.stdin.write(FLOATS + npy("|u1", (1 << 20,), bytes(100000)))  # more than the pipe holds: some is read
    pack.kill()
    pack.wait(ndbus_run.DEADLINE)
    assert sorted(os.listdir(folder)) == before, os.listdir(folder)
    limited = subprocess.run(["/bin/sh", "-c", 'ulimit -f 8; exec "$@"', "sh", ndbus_run.NDBUS, "pack", big,
                              "--dtype", "uint8", "-o", out], capture_output=True, timeout=ndbus_run.DEADLINE)
    assert limited.returncode == 1 and b"out.ndb: File too large" in limited.stderr, limited
    assert sorted(os.listdir(folder)) == before, os.listdir(folder)
    done = run("pack", a, "-o", "/dev/full", check=1)
    assert "/dev/full: No space left on device" in done.err, done.err
    for _ in range(2):  # the second one replaces the first
        run("pack", a, "-o", out, check=0)
    assert sorted(os.listdir(folder)) == sorted(before + ["out.ndb"]), os.listdir(folder)


def test_waiting_input(folder):
    """SIGTERM is heard by who waits for input: where nobody writes, between messages, within one."""
    fifo = os.path.join(folder, "fifo")
    os.mkfifo(fifo)
    with Daemon() as daemon:
        def start(topic):
            return subprocess.Popen([ndbus_run.NDBUS, "pub", "--url", daemon.unix, topic, fifo],
                                    stderr=subprocess.PIPE)

        def finish(pub, check):
            pub.terminate()
            _, said = pub.communicate(timeout=ndbus_run.DEADLINE)
            assert pub.returncode == check, (pub.returncode, said)
            return said

        pub = start("t")  # it hears signals before it connects, and connects before it opens the FIFO
        while len(json.loads(run("stat", "--json", url=daemon.unix, check=0).out)["clients"]) < 2:
            pass
        assert finish(pub, 0) == b""

        sub = Sub(daemon.unix, "t", "--count", 1)
        pub = start("t")
        with open(fifo, "wb", buffering=0) as writer:
            writer.write(FLOATS)
            sub.finish()
            assert finish(pub, 0) == b""

        pub = start("t")
        with open(fifo, "wb", buffering=0) as writer:
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
            writer.write(npy("|u1", (1 << 20,), bytes(100000)))  # more than the pipe holds: some is read
            assert b"the rest of message 1" in finish(pub, 1)


def test_broadcast(folder):
    """A broadcast axis is sent once; what a few bytes become in a file has a limit."""
    few = put(folder, "few.ndb", record({"dtype": ["uint8", 8], "shape": [3, 4], "strides": [0, 1]}, b"\1\2\3\4"))
    many = put(folder, "many.ndb", record({"dtype": ["uint8", 8], "shape": [1 << 40, 4], "strides": [0, 1]},
                                          b"\1\2\3\4"))
    whole = npy("|u1", (3, 4), b"\1\2\3\4" * 3)
    out = os.path.join(folder, "out")
    run("unpack", few, "-o", out, "--broadcast-max", 12, check=0)
    assert get(out, "1.npy") == whole
    for path, limit, says in [(few, ["--broadcast-max", "11"], "12 bytes, the limit is 11"),
                              (many, [], "4398046511104 bytes, the limit is 1073741824")]:
        done = run("unpack", path, "-o", out, *limit, check=1)
        assert says in done.err and "--broadcast-max" in done.err, done.err
    dense = put(folder, "dense", bytes(100))
    run("pack", dense, "--dtype", "uint8", "-o", os.path.join(folder, "dense.ndb"), check=0)
    run("unpack", os.path.join(folder, "dense.ndb"), "-o", out, "--broadcast-max", 0, check=0)
    with Daemon() as daemon:
        sub = Sub(daemon.unix, "t", "--count", 2, "-o", out)
        run("pub", "t", many, few, url=daemon.unix, check=0)
        lines = [line.split("\t") for line in sub.finish(1)]
        assert [c[3:5] for c in lines] == [["[1099511627776,4]", "4"], ["[3,4]", "4"]], lines
        assert len(lines[0]) == 7 and get(lines[1][7][5:]) == whole, lines
        assert "the limit is 1073741824 (--broadcast-max)" in sub.said, sub.said
        assert sorted(os.listdir(out)) == ["1.npy", "dense.npy", "t-2.npy"]

        # a question is written out for the command too, and an answer that came as a record
        reply = Sub(daemon.unix, "svc", "--exec", "cat", command="reply")
        done = run("request", "svc", few, "-o", out, url=daemon.unix, check=0)
        assert get(out, "svc-1.npy") == whole
        done = run("request", "svc", many, url=daemon.unix, check=1)
        assert "question: shape: repeats elements" in done.out and "(message-max)" in done.out, done.out
        reply.interrupt()


def test_malformed_meta(folder):
    """What is no map is told by whoever reads it; nobody else is harmed."""
    frame = {"dtype": ["uint8", 8], "shape": [4]}
    for meta in [b"\xdf\xff\xff\xff\xff", b"\1"]:
        path = put(folder, "bad.ndb", record(frame, b"\1\2\3\4", meta))
        for arguments in [["unpack", path, "-o", folder], ["info", path], ["pack", path, "-o", "-"]]:
            done = run(*arguments, check=1)
            assert "record 1, which begins at byte 0: meta is not a msgpack map" in done.err, done.err
    with Daemon() as daemon:
        out = os.path.join(folder, "recording.ndb")
        sub = Sub(daemon.unix, "t", "--count", 1, "--meta")
        recorder = Sub(daemon.unix, "t", "--count", 1, "--timeout", 1, "-o", out, command="record")
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(daemon.unix[len("unix:"):])
            peer.sendall(b"NDBUS\0\1\1" + bytes(8) + packet(1, {"features": []}))
            header = {"topic": "t", "frames": [dict(frame, bytes=4)]}
            peer.sendall(packet(16, header, b"\1", 4) + b"\1\2\3\4")
            line = sub.finish(1)[0].split("\t")
            assert line[2:5] == ["uint8", "[4]", "4"] and line[7:] == ["note=meta is not a msgpack map"], line
            recorder.finish(1)
        assert "meta is not a msgpack map: meta: " in sub.said, sub.said
        assert "not recorded: meta is not a msgpack map: meta: " in recorder.said, recorder.said
        assert "messages\t0" in run("info", out, check=0).out
    good = put(folder, "good.ndb", record(frame, b"\1\2\3\4", msgpack({"k": "v"})))
    assert '{"k": "v"}' in run("unpack", good, "-o", folder, "--meta", check=0).out


def test_restart(folder):
    """A subscriber lives longer than its daemon."""
    a = put(folder, "a.npy", FLOATS)
    with Daemon() as daemon:
        sub = Sub(daemon.unix, "t", "--count", 2)
        run("pub", "t", a, "--wait-subscribers", 1, url=daemon.unix, check=0)
        line = sub.read_line()
        assert line.split("\t")[6] == "0\n", line
        daemon.stop()
        sub.wait_said("connecting again")
        daemon.start()
        run("pub", "t", a, "--wait-subscribers", 1, "--timeout", 60, url=daemon.unix, check=0)
        lines = sub.finish()
        assert len(lines) == 1 and lines[0].split("\t")[6] == "unknown", lines


def test_losses(folder):
    """What was lost is told at the end too, where no line comes after it."""
    raw = put(folder, "raw", bytes(100))
    for end in [["--count", 2], []]:
        with Daemon() as daemon:
            sub = Sub(daemon.unix, "d/**", "--policy", "drop-newest", "--depth", 1, "--window", 1, *end)
            sub.process.send_signal(signal.SIGSTOP)
            run("pub", "d/1", raw, "--dtype", "uint8", "--repeat", 1000, url=daemon.unix, check=0)
            sub.process.send_signal(signal.SIGCONT)
            lines = [sub.read_line(), sub.read_line()]
            assert (sub.finish() if end else sub.interrupt()) == [], sub.printed
            assert [line.split("\t")[6].strip() for line in lines] == ["0", "0"], lines
            assert "ndbus sub: d/**: 998 messages lost after the last line\n" in sub.said, (end, sub.said)
    with Daemon() as daemon:  # what a line tells is not told once more
        sub = Sub(daemon.unix, "d/**", "--depth", 1, "--window", 1)
        sub.process.send_signal(signal.SIGSTOP)
        run("pub", "d/1", raw, "--dtype", "uint8", "--repeat", 10, url=daemon.unix, check=0)
        sub.process.send_signal(signal.SIGCONT)
        assert [sub.read_line().split("\t")[6].strip() for _ in range(2)] == ["0", "8"]
        assert sub.interrupt() == [] and "lost" not in sub.said, sub.said


def test_lost_questions(folder):
    """Whoever answers says which it never saw, while it goes on."""
    raw = put(folder, "raw", bytes(8))
    with Daemon() as daemon:
        reply = Sub(daemon.unix, "q", "--count", 1, "--exec", "cat", command="reply")
        reply.process.send_signal(signal.SIGSTOP)
        run("pub", "q", raw, "--dtype", "uint8", "--repeat", 2000, url=daemon.unix, check=0)
        reply.process.send_signal(signal.SIGCONT)
        run("request", "q", raw, "--dtype", "uint8", url=daemon.unix, check=0)
        reply.finish()
        lost = [int(n) for n in re.findall(r"^ndbus reply: q: (\d+) messages lost$", reply.said, re.M)]
        assert sum(lost) == 2000 - 256 - 1000, reply.said  # window and depth are the defaults


def test_what_the_daemon_says_unasked(folder):
    """An error, an answer and an end that belong to nothing that waits are told all the same."""
    path = os.path.join(folder, "s")
    welcome = {"features": [], **{key: 1 << 20 for key in [
        "source", "grant", "message_max", "header_max", "meta_max", "dims_max", "subscriptions_max", "shm_max"]}}

    def say(peer, kind, header, sequence=1, subscription=0):
        data = bytearray(packet(kind, header or {}))
        if header is None:
            data[4:8] = bytes(4)
            del data[64:]
        data[40:48] = struct.pack("<Q", sequence)
        data[56:60] = struct.pack("<I", subscription)
        peer.sendall(data)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        sub = subprocess.Popen([ndbus_run.NDBUS, "sub", "t", "--timeout", "0.1", "--url", "unix:" + path],
                               stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        peer, _ = server.accept()
        with peer:
            peer.recv(16, socket.MSG_WAITALL)
            peer.sendall(b"NDBUS\0\1\0\1\1" + bytes(6))
            peer.recv(4096)
            say(peer, 2, welcome)
            asked = peer.recv(4096)  # SUBSCRIBE
            number, subscription = struct.unpack("<Q", asked[40:48])[0], struct.unpack("<I", asked[56:60])[0]
            say(peer, 33, {"depth": 1000, "bytes": 1 << 26}, number, subscription)
            say(peer, 4, {"code": 45, "text": "not for you", "of": 32}, 99)
            say(peer, 4, {"code": 45, "text": "this neither", "of": 16}, 7)
            say(peer, 6, None, 1000)
            say(peer, 7, {"code": 28, "text": "the daemon is stopping"}, 0)
            out, err = sub.communicate(timeout=ndbus_run.DEADLINE)
    for text in ["not permitted: ERROR about SUBSCRIBE 99: not for you",
                 "not permitted: ERROR about PUBLISH 7: this neither",
                 "PONG about PING 1000: was never asked",
                 "GOODBYE: the daemon is stopping"]:
        assert "ndbus sub: the daemon says: " in err.decode() and text in err.decode(), err.decode()
    assert sub.returncode == 0 and not out, (sub.returncode, out)


def test_view(folder):
    ramp = npy("|u1", (1, 10), bytes([0, 28, 57, 85, 113, 142, 170, 198, 227, 255]))
    a = put(folder, "a.npy", ramp)
    environment = {"LC_ALL": "C.UTF-8", "COLUMNS": "40", "LINES": "12", "TERM": "xterm"}
    with Daemon() as daemon:
        for extra, want in [({}, "    ....::::----====++++****####%%%%@@@@"),
                            ({"CLICOLOR_FORCE": "1", "COLORTERM": "truecolor"}, "\x1b[38;2;")]:
            sub = Sub(daemon.unix, "t", "--count", 1, "--view", env={**environment, **extra})
            run("pub", "t", a, "--wait-subscribers", 1, url=daemon.unix, check=0)
            lines = sub.finish()
            assert lines[1] == "uint8 [1,10]  min 0  max 255", lines
            assert lines[2].startswith(want), lines


def test_operator(folder):
    a = put(folder, "a.npy", FLOATS)
    with Daemon() as daemon:
        sub = Sub(daemon.unix, "t/*", "--policy", "latest")
        run("pub", "t/x", a, "--retain", "--repeat", 3, url=daemon.unix, check=0)
        everything = json.loads(run("stat", "--json", url=daemon.tcp, check=0).out)
        assert everything["server"]["pid"] == daemon.process.pid
        assert [s["pattern"] for s in everything["subscriptions"]] == ["t/*"]
        assert everything["counters"]["messages_in"] == 3
        done = run("stat", url=daemon.tcp, check=0)
        for text in ["clients: 2", "subscriptions: 1", "topics: 1", "latest", "t/*", "messages_in"]:
            assert text in done.out, (text, done.out)
        topics = json.loads(run("stat", "--json", url=daemon.tcp, check=0).out)["topics"]
        assert [t["retained"] for t in topics] == [True]
        run("pub", "t/x", "--clear", url=daemon.unix, check=0)
        topics = json.loads(run("stat", "--json", url=daemon.tcp, check=0).out)["topics"]
        assert not any(t["retained"] for t in topics), topics
        for i in range(60):
            run("pub", f"many/{i}", a, "--retain", url=daemon.unix, check=0)
        n = len(json.loads(run("stat", "--json", url=daemon.tcp, check=0).out)["topics"])
        done = run("stat", url=daemon.tcp, check=0)
        assert f"topics: {n}, of which these are 50; --all shows all\n" in done.out, done.out
        assert 49 <= done.out.count("many/") <= 50, done.out
        assert run("stat", "--all", url=daemon.tcp, check=0).out.count("many/") == 60
        done = run("stat", "--blocks", url=daemon.unix, check=0)
        for text in ["segments: 0", "holders: 0"]:
            assert text in done.out, (text, done.out)
        assert "5 round trips: min " in run("ping", "--count", 5, url=daemon.unix, check=0).out
        sub.interrupt()
        for arguments in [["--size", "16", "--count", "100", "--subscribers", "3"],
                          ["--size", "3M", "--count", "5"],
                          ["--size", "1K", "--seconds", "0.1", "--rate", "200"]]:
            done = run("bench", *arguments, url=daemon.unix, check=0)
            assert "MB/s" in done.out and "delay p50" in done.out and "lost" not in done.out, done.out
        for arguments, url, way in [
                (["--size", "1M"], daemon.unix, "10 in shared memory, for 0 there was none"),
                (["--size", "1K", "--loan"], daemon.unix, "11 in shared memory, for 0 there was none"),
                (["--size", "1M", "--loan", "--no-shm"], daemon.unix, "all by the socket"),
                (["--size", "1M", "--loan"], daemon.tcp, "all by the socket"),
                (["--size", "1M", "--no-shm"], daemon.unix, "all by the socket")]:
            done = run("bench", "--count", 10, *arguments, url=url, check=0)
            assert done.out.startswith("10 messages"), done.out
            assert done.out.endswith(f"\n{way}\n"), (arguments, done.out)


def test_block(folder):
    a = put(folder, "a.npy", FLOATS)
    with Daemon() as daemon:
        sub = Sub(daemon.unix, "t", "--policy", "block", "--depth", 2, "--bytes", "1M", "--window", 1,
                  "--count", 40)
        sub.process.send_signal(signal.SIGSTOP)
        # more than the daemon lets a publisher send before it has read what came, however slow it is
        done = run("pub", "t", a, "--repeat", 600, "--timeout", "0.001", url=daemon.unix, check=1)
        assert "would" in done.err or "not granted" in done.err or "paused" in done.err, done.err
        n_sent = json.loads(run("stat", "--json", url=daemon.unix, check=0).out)["counters"]["messages_in"]
        assert n_sent < 600, n_sent
        waiting = subprocess.Popen([ndbus_run.NDBUS, "pub", "--url", daemon.unix, "t", a, "--repeat",
                                    "60", "--rate", "1000", "--block"])
        sub.process.send_signal(signal.SIGCONT)
        lines = sub.finish()
        assert waiting.wait(ndbus_run.DEADLINE) == 0
        assert len(lines) == 40 and all(line.split("\t")[6] == "0" for line in lines), lines


def test_group(folder):
    a = put(folder, "a.npy", FLOATS)
    with Daemon() as daemon:
        subs = [Sub(daemon.unix, "t", "--group", "g", "--window", 2) for _ in range(2)]
        run("pub", "t", a, "--repeat", 200, "--timeout", 60, url=daemon.tcp, check=0)
        done = run("sub", "t", "--group", "g", "--policy", "block", url=daemon.unix, check=1)
        assert "group" in done.err, done.err
        while True:
            groups = json.loads(run("stat", "--json", url=daemon.unix, check=0).out)["groups"]
            if groups[0]["queued"] == 0 and groups[0]["unfinished"] == 0:
                break
        lines = [line for sub in subs for line in sub.interrupt()]
        assert sorted(int(line.split("\t")[1]) for line in lines) == list(range(1, 201))


def test_request(folder):
    a = put(folder, "a.npy", FLOATS)
    b = put(folder, "b.npy", BRAIN)
    out = os.path.join(folder, "out")
    with Daemon() as daemon:
        done = run("request", "svc", a, url=daemon.unix, check=1)
        assert done.out == "" and "svc" in done.err and "subscri" in done.err, done.err

        # the question itself as the answer; two arrays in one answer
        reply = Sub(daemon.unix, "svc", "--exec", "cat", command="reply")
        done = run("request", "svc", a, b, "-o", out, url=daemon.tcp, check=0)
        lines = [line.split("\t") for line in done.out.splitlines()]
        assert lines[0][:4] == ["svc", "float32", "[3]", "12"], lines
        assert lines[0][5] == f"file={out}/svc-1.npy" and lines[1][5] == f"file={out}/svc-2.npy", lines
        assert get(out, "svc-1.npy") == FLOATS and get(out, "svc-2.npy") == BRAIN
        reply.interrupt()
        reply = Sub(daemon.unix, "svc", "--exec", f"cat; cat {b}", "--count", "1", command="reply")
        done = run("request", "svc", a, url=daemon.tcp, check=0)
        assert done.out.split("\t")[1:3] == ["float32;opaque[2]", "[3];[6]"], done.out
        reply.finish()

        # the environment; failures are answers
        says = os.path.join(folder, "says")
        script = f'echo "$NDBUS_TOPIC $NDBUS_ARRAYS $NDBUS_META" > {says}; exit 3'
        reply = Sub(daemon.unix, "svc/*", "--exec", script, "--group", "g", command="reply")
        done = run("request", "svc/x", a, "--meta", "k=5", url=daemon.unix, check=1)
        cells = done.out.rstrip("\n").split("\t")
        assert cells[1:4] == ["-", "-", "0"], cells
        assert json.loads(cells[5][5:]) == {"error": "the command's exit status is 3"}, cells
        assert get(says) == b'svc/x 1 {"k": 5}\n', get(says)
        run("pub", "svc/x", a, url=daemon.unix, check=0)  # asks for no answer
        reply.interrupt()
        assert "exit status is 3" in reply.said
        reply = Sub(daemon.unix, "svc", "--exec", "echo no array", command="reply")
        done = run("request", "svc", a, url=daemon.unix, check=1)
        assert "what the command wrote: byte 0" in done.out, done.out
        reply.interrupt()

        # somebody is there and does not answer
        sub = Sub(daemon.unix, "svc")
        done = run("request", "svc", a, "--timeout", "0.1", url=daemon.unix, check=1)
        assert "in time" in done.err, done.err  # or the daemon itself has not answered
        sub.interrupt()


def test_request_that_never_ends(folder):
    """What cannot become an answer is ended: what is none from the first byte on, and what takes too long."""
    a = put(folder, "a.npy", FLOATS)
    fifo = os.path.join(folder, "fifo")  # nobody writes into it
    pid = os.path.join(folder, "pid")
    os.mkfifo(fifo)
    zeros = put(folder, "zeros.npy", npy("|u1", (1 << 40,), b""))
    with Daemon("--message-max", "1M") as daemon:
        for script, arguments, says in [
            (f"echo $$ > {pid}; yes", [], "what the command wrote: byte 0: "),
            (f"cat {a}; echo $$ > {pid}; yes & wait", [], "what the command wrote: byte 140: "),
            (f"echo $$ > {pid}; cat {zeros} /dev/zero", [], "more than 1048576 bytes"),
            (f"echo $$ > {pid}; read line < {fifo}", ["--timeout", "0.2"], "did not end in 0.2 s"),
        ]:
            reply = Sub(daemon.unix, "svc", "--exec", script, "--count", 1, *arguments, command="reply")
            done = run("request", "svc", a, "--timeout", 60, url=daemon.unix, check=1)
            reply.finish()
            assert says in json.loads(done.out.rstrip("\n").split("\t")[5][5:])["error"], done.out
            try:
                os.kill(int(get(pid)), 0)
                raise AssertionError(f"the command lives: {script}")
            except ProcessLookupError:
                pass

        # what it leaves behind is not waited for, and what it wrote before it ended counts
        reply = Sub(daemon.unix, "svc", "--exec", f"cat; echo $$ > {pid}; exec 2>&-; read line < {fifo} &", "--count", 1,
                    command="reply")
        run("request", "svc", a, "--timeout", 60, url=daemon.unix, check=0)
        reply.finish()
        os.killpg(int(get(pid)), signal.SIGKILL)

        # who answers is told to end
        reply = Sub(daemon.unix, "svc", "--exec", f"echo run >&2; read line < {fifo}", command="reply")
        asks = subprocess.Popen([ndbus_run.NDBUS, "request", "--url", daemon.unix, "svc", a, "--timeout", "60"],
                                stdout=subprocess.PIPE)
        reply.wait_said("run\n")
        reply.process.terminate()
        reply.finish()
        assert b"told to end" in asks.communicate(timeout=ndbus_run.DEADLINE)[0] and asks.returncode == 1


def test_watch(folder):
    a = put(folder, "a.npy", FLOATS)
    with Daemon() as daemon:
        sub = Sub(daemon.unix, "t/**")
        other = Sub(daemon.unix, "t/a")
        run("pub", "t/a", a, "--retain", url=daemon.unix, check=0)  # or the topic goes with it
        other.read_line()
        pub = subprocess.Popen([ndbus_run.NDBUS, "pub", "--url", daemon.unix, "t/a", a, "--repeat", "0",
                                "--rate", "500"])
        other.read_line()  # it publishes
        done = run("stat", "--watch", "0.2", "--count", 3, url=daemon.unix, check=0)
        pub.send_signal(signal.SIGINT)
        pub.wait(ndbus_run.DEADLINE)
        tables = [table.splitlines() for table in done.out.rstrip("\n").split("\n\n")]
        assert len(tables) == 3, done.out
        for i, table in enumerate(tables):
            assert table[0].split() == ["TOPIC", "DTYPE", "SHAPE", "HZ", "MB/S", "SUBSCRIBERS", "QUEUED",
                                        "DROPS"], table
            row = table[1].split()
            assert row[:3] == ["t/a", "float32", "[3]"] and row[5] == "2" and row[7] == "0", row
            assert (row[3] == "-") == (i == 0), row
        assert max(float(table[1].split()[3]) for table in tables[1:]) > 0, tables
        sub.interrupt()
        other.interrupt()


ndbus_run.run_tests(globals())
