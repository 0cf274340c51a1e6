#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""ndbus record, replay and info: what is in the file, at its end, and when things go wrong."""

import os
import resource
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import ndbus_run
from ndbus_run import Daemon, Sub, put, run


def align(n):
    return -(-n // 64) * 64


def records(data):
    """A reader of its own, from PROTOCOL.md 9: (kind, flags, source, sequence, time, header, meta,
    body) of each record."""
    at = 0
    while at < len(data):
        head = data[at:at + 64]
        assert head[:9] == b"\x89NDBUS\r\n\1" and not any(head[9:16]) and not any(head[24:]), at
        kind, zero, flags, n_header, n_meta, stream, n_body, place, source, sequence, time_ns, sub, \
            segment = struct.unpack("<BBHIIIQQQQQII", data[at + 64:at + 128])
        assert (zero, stream, place, sub, segment) == (0,) * 5, at
        meta_at = at + 128 + n_header
        body_at = at + align(128 + n_header + n_meta)
        end = body_at + align(n_body)
        assert struct.unpack("<Q", head[16:24])[0] == end - at and end <= len(data), at
        assert not any(data[meta_at + n_meta:body_at]) and not any(data[body_at + n_body:end]), at
        yield (kind, flags, source, sequence, time_ns, data[at + 128:meta_at],
               data[meta_at:meta_at + n_meta], data[body_at:body_at + n_body])
        at = end


def get(path):
    with open(path, "rb") as f:
        return f.read()


def info(path, *arguments, check=0):
    done = run("info", path, *arguments, check=check)
    lines = [line.split("\t") for line in done.out.splitlines()]
    values = {line[0]: line[1] for line in lines if line[0] != "topic"}
    topics = {line[3]: (int(line[1]), int(line[2])) for line in lines if line[0] == "topic"}
    return values, topics, done.err


def record(daemon, path, *arguments, url=None):
    return Sub(url or daemon.unix, "-o", path, *arguments, command="record")


def pub(daemon, topic, *arguments, data=b"\1\2\3\4", check=0):
    blob = put(daemon.folder, "blob", data)
    run("pub", topic, blob, "--dtype", "uint8", *arguments, url=daemon.unix, check=check)


def test_what_is_in_the_file(folder):
    path = os.path.join(folder, "all.ndb")
    big = bytes(range(256)) * 1500
    with Daemon() as daemon:
        pub(daemon, "t/old", "--retain", data=b"old")
        r = record(daemon, path, "t/**", "t/*", "other", "--count", 5, url=daemon.tcp)
        # a message that two patterns match is recorded once
        pub(daemon, "t/a", "--meta", "n=1")
        pub(daemon, "t/a/b", data=big)
        pub(daemon, "nobody")
        pub(daemon, "other", data=b"")
        sub = Sub(daemon.unix, "t/a", "--count", 1)
        pub(daemon, "t/a", "--meta", "n=2")
        sent_ns = time.time_ns()
        sub.finish()
        r.finish()
    assert "5 messages, " in r.said and " 0 lost" in r.said, r.said
    found = list(records(get(path)))
    assert [f[0] for f in found] == [16] * 5 + [201], found
    assert [f[1] for f in found[:5]] == [4, 0, 0, 0, 0], found  # the retained one
    assert [f[7] for f in found[:5]] == [b"old", b"\1\2\3\4", big, b"", b"\1\2\3\4"]
    assert [f[6] for f in found[:5]] == [b"", b"\x81\xa1n\1", b"", b"", b"\x81\xa1n\2"]
    assert [f[3] for f in found[:5]] == [1] * 5 and len({f[2] for f in found[:5]}) == 5
    assert all(0 <= sent_ns - f[4] < 3600e9 for f in found[:5]), found

    size = os.path.getsize(path)
    last, = struct.unpack("<Q", get(path)[-8:])
    values, topics, _ = info(path)
    assert values["messages"] == "5" and values["index"] == "yes" and values["lost"] == "0", values
    assert values["bytes"] == str(size - last) and values["body_bytes"] == str(len(big) + 11), values
    assert topics == {"t/old": (1, 3), "t/a": (2, 8), "t/a/b": (1, len(big)), "other": (1, 0)}, topics
    scanned, scanned_topics, _ = info(path, "--scan")
    assert scanned_topics == topics and scanned["index"] == "no", scanned
    for name in ["messages", "bytes", "body_bytes", "first", "last", "seconds"]:
        assert scanned[name] == values[name], (name, scanned, values)


def test_replay(folder):
    path = os.path.join(folder, "a.ndb")
    with Daemon() as daemon:
        pub(daemon, "t/kept", "--retain", data=b"kept")
        r = record(daemon, path, "**", "--count", 31)
        for i in range(10):
            pub(daemon, f"t/{i % 2}", "--meta", f"i={i}", "--repeat", 3, data=bytes([i]))
        r.finish()
    original = list(records(get(path)))[:-1]
    with Daemon() as daemon:
        # recorded again it is the same, but for the sources
        again = os.path.join(folder, "b.ndb")
        r = record(daemon, again, "**", "--count", 31, url=daemon.tcp)
        run("replay", path, "--rate", 0, url=daemon.unix, check=0)
        r.finish()
        copies = list(records(get(again)))[:-1]
        for c, o in zip(copies, original):
            assert c[5:] == o[5:], (c, o)
        assert len(copies) == len(original)
        sub = Sub(daemon.unix, "t/*", "--count", 1)  # the retained value was retained again
        assert sub.finish()[0].split("\t")[7] == "retained"

        r = record(daemon, again, "t/**", "--count", 32, "--replace", "--no-retained")
        run("replay", path, "--topic", "t/1", "--topic", "t/kept", "--rate", 0, "--repeat", 2,
            url=daemon.unix, check=0)
        r.finish()
        copies = list(records(get(again)))[:-1]
        wanted = [o[5:] for o in original if b"t/1" in o[5] or b"t/kept" in o[5]]
        assert [c[5:] for c in copies] == wanted * 2
        # from a pipe
        done = run("replay", "-", "--rate", 0, url=daemon.unix, input=get(path), check=0)
        done = run("replay", put(folder, "no.npy", b"text"), url=daemon.unix, check=1)
        assert "neither .npy nor an ndbus record" in done.err, done.err


def with_times(data, times):
    """The same records at other times, without their index."""
    out = b""
    at = 0
    for (kind, *_), time_ns in zip(records(data), times):
        assert kind == 16
        n, = struct.unpack("<Q", data[at + 16:at + 24])
        piece = bytearray(data[at:at + n])
        piece[64 + 48:64 + 56] = struct.pack("<Q", time_ns)
        out += piece
        at += n
    return out


def test_pace(folder):
    path = os.path.join(folder, "a.ndb")
    with Daemon() as daemon:
        r = record(daemon, path, "t", "--count", 4)
        pub(daemon, "t", "--repeat", 4)
        r.finish()
        start = 10 ** 18
        paced = put(folder, "paced.ndb",
                    with_times(get(path), [start, start + 10 ** 9, start, start + 2 * 10 ** 9]))
        for arguments, at_least in [([], 2), (["--rate", "4"], 0.5), (["--start", "1.5"], 0)]:
            r = record(daemon, path, "t", "--replace", "--count", 4 if at_least else 1)
            begun, begun_ns = time.monotonic(), time.time_ns()
            run("replay", paced, *arguments, url=daemon.unix, check=0)
            assert time.monotonic() - begun >= at_least, arguments
            r.finish()
            times = [f[4] for f in list(records(get(path)))[:-1]]
            # never before its time; how long after is the machine's affair
            if at_least:
                assert times[1] - begun_ns >= 0.49e9 * at_least, (arguments, times)
                assert times[3] - begun_ns >= 0.99e9 * at_least, (arguments, times)


def test_start_by_the_index(folder):
    """With an index and without, the same messages."""
    path = os.path.join(folder, "a.ndb")
    n = 300
    with Daemon() as daemon:
        r = record(daemon, path, "t", "--count", n)
        pub(daemon, "t", "--repeat", n)
        r.finish()
        data = get(path)
        times = [f[4] for f in list(records(data))[:-1]]
        plain = put(folder, "plain.ndb", with_times(data, times))
        for i in [1, n // 2, n - 1]:
            seconds = f"{(times[i] - times[0]) // 1000000 / 1000:.3f}"
            kept = sum(t >= times[0] + round(float(seconds) * 1000) * 1000000 for t in times)
            for file in [path, plain]:
                out = os.path.join(folder, "out.ndb")
                r = record(daemon, out, "t", "--replace", "--count", kept)
                run("replay", file, "--rate", 0, "--start", seconds, url=daemon.unix, check=0)
                r.finish()
                assert info(out)[0]["messages"] == str(kept)


def test_a_recorder_that_is_killed(folder):
    path = os.path.join(folder, "a.ndb")
    with Daemon() as daemon:
        r = record(daemon, path, "t")
        pub(daemon, "t", data=bytes(1 << 20))
        for i in range(20):
            pub(daemon, "t", data=bytes([i]))
        while os.path.getsize(path) < (1 << 20) + 20 * 256:
            pass
        r.process.kill()
        r.process.wait()
        whole = get(path)
        values, topics, said = info(path)
        assert values["messages"] == "21" and values["index"] == "no" and not said, (values, said)
        # cut anywhere: what is whole is read, and the byte is told
        for cut in [len(whole) - 1, len(whole) - 255, (1 << 20) + 193, 64, 1]:
            values, topics, said = info(put(folder, "cut.ndb", whole[:cut]), check=1)
            assert f"ends at byte {cut}" in said, said
            if cut > 1 << 20:
                assert values["messages"] == str((cut - (1 << 20) - 192) // 256 + 1), (cut, values)
            else:
                assert not values
        cut = put(folder, "cut.ndb", whole[:-1])
        again = os.path.join(folder, "b.ndb")
        r = record(daemon, again, "t", "--count", 20)
        done = run("replay", cut, url=daemon.unix, check=1)
        assert f"ends at byte {len(whole) - 1}" in done.err, done.err
        r.finish()


def test_ends(folder):
    path = os.path.join(folder, "a.ndb")
    with Daemon() as daemon:
        for stop in [signal.SIGINT, signal.SIGTERM]:
            r = record(daemon, path, "t", "--replace", "--policy", "block")
            pub(daemon, "t")
            while os.path.getsize(path) == 0:
                pass
            r.process.send_signal(stop)
            r.finish()
            assert info(path)[0]["index"] == "yes"
        r = record(daemon, path, "nobody", "--replace", "--timeout", "0.1")
        r.finish()
        values, topics, _ = info(path)
        assert (values["messages"], values["index"], topics) == ("0", "yes", {}), values
        r = record(daemon, path, "t", "--replace", "--timeout", "0.1", "--count", 1)
        r.finish(check=1)
        assert "0 of 1 came" in r.said, r.said

        # two recordings are one, and the index of the second is passed over
        r = record(daemon, path, "t", "--replace", "--count", 1)
        pub(daemon, "t")
        r.finish()
        both = put(folder, "both.ndb", get(path) * 2)
        values, topics, _ = info(both)
        assert values["messages"] == "2" and values["index"] == "no", values

        # stdout; and what is there is not lost by mistake
        r = record(daemon, "-", "t", "--count", 1)
        pub(daemon, "t")
        out, err = r.process.communicate(timeout=ndbus_run.DEADLINE)
        assert [f[0] for f in records(out)] == [16, 201], err
        size = os.path.getsize(path)
        done = run("record", "t", "-o", path, url=daemon.unix, check=1)
        assert f"exists and has {size} bytes" in done.err and os.path.getsize(path) == size, done.err
        done = run("record", "t", "-o", os.path.join(folder, "no", "a"), url=daemon.unix, check=1)
        assert "No such file or directory" in done.err, done.err
    done = run("record", "t", "-o", path, "--replace", url="unix:" + folder + "/nobody", check=1)
    assert os.path.getsize(path) == size, "no daemon, and the old recording is gone"


def test_index_that_lies(folder):
    path = os.path.join(folder, "a.ndb")
    with Daemon() as daemon:
        r = record(daemon, path, "t", "--count", 2)
        pub(daemon, "t")
        pub(daemon, "t")
        r.finish()
        data = bytearray(get(path))
        n, = struct.unpack("<Q", data[-8:])
        data[-n + 128] = 9  # as many records it says there are
        bad = put(folder, "bad.ndb", data)
        values, topics, said = info(bad, check=1)
        assert values["messages"] == "2" and values["index"] == "no", values
        assert "index: byte " in said and "its places are not as many as it says" in said, said
        run("replay", bad, "--rate", 0, url=daemon.unix, check=0)
        done = run("replay", bad, "--start", 1, url=daemon.unix, check=1)
        assert "its places are not as many as it says" in done.err, done.err


def test_no_space(folder):
    """A limit of the file's size, which would be a signal; and small records, gathered."""
    path = os.path.join(folder, "a.ndb")
    with Daemon() as daemon:
        for limit, size in [(1 << 20, 100000), (1 << 20, 1000000), (30000, 1)]:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                r = record(daemon, path, "t", "--replace", "--policy", "block")
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            pub(daemon, "t", "--repeat", min(limit // size, 200) + 2, data=bytes(size))
            r.finish(check=1)
            assert "write: File too large; the file holds " in r.said, r.said
            n = int(r.said.split("the file holds ")[1].split()[0])
            found = list(records(get(path)))  # to the last byte
            assert len(found) == n and n >= 1 and all(f[0] == 16 for f in found), (n, len(found))
            assert info(path)[0]["messages"] == str(n)


def test_disk_full(folder):
    """/dev/full is no regular file: nothing can be taken back, and the error is the same."""
    with Daemon() as daemon:
        r = record(daemon, "/dev/full", "t")
        pub(daemon, "t")
        r.finish(check=1)
        assert "write: No space left on device; the file holds 0 messages" in r.said, r.said


def test_losses(folder):
    path = os.path.join(folder, "a.ndb")
    with Daemon() as daemon:
        r = record(daemon, path, "t", "--depth", 1, "--bytes", "1K")
        r.process.send_signal(signal.SIGSTOP)
        pub(daemon, "t", "--repeat", 400, data=bytes(1000))  # the window is 256
        r.process.send_signal(signal.SIGCONT)
        while not any(f[3] == 400 for f in [*readable(path)]):
            pass
        r.interrupt()
        values, _, _ = info(path)
        sequences = [f[3] for f in list(records(get(path)))[:-1]]
        assert int(values["lost"]) == 400 - len(sequences) > 0, (values, len(sequences))


def readable(path):
    """The whole records of a file that is being written."""
    data = get(path)
    try:
        yield from records(data)
    except (AssertionError, struct.error):
        return


def test_daemon_that_restarts(folder):
    path = os.path.join(folder, "a.ndb")
    with Daemon() as daemon:
        r = record(daemon, path, "t", "--count", 2)
        pub(daemon, "t")
        while os.path.getsize(path) == 0:
            pass
        daemon.stop()
        r.wait_said("connecting again")
        daemon.start()
        pub(daemon, "t", "--wait-subscribers", 1, "--timeout", 60)
        r.finish()
        assert "1 gaps of unknown size" in r.said, r.said
        values, _, _ = info(path)
        assert values["messages"] == "2" and values["unknown_gaps"] == "1", values


def test_a_file_that_is_cut_while_it_is_read(folder):
    """Messages that are copied (SIGBUS) and those the kernel takes from the mapping (EFAULT)."""
    path = os.path.join(folder, "a.ndb")
    with Daemon() as daemon:
        for size in [1, 4 << 20]:
            r = record(daemon, path, "t", "--replace", "--count", 3, "--policy", "block")
            pub(daemon, "t", "--repeat", 3, data=bytes(size))
            r.finish()
            start = 10 ** 18
            slow = put(folder, "slow.ndb",
                       with_times(get(path), [start, start + 10 ** 9, start + 60 * 10 ** 9]))
            sub = Sub(daemon.unix, "t", "--count", 1)
            replay = subprocess.Popen([ndbus_run.NDBUS, "replay", slow, "--url", daemon.unix],
                                      stderr=subprocess.PIPE)
            sub.finish()  # it has begun, and goes on for a minute
            os.truncate(slow, 0)
            _, said = replay.communicate(timeout=ndbus_run.DEADLINE)
            assert replay.returncode == 1 and b"cut short" in said, (replay.returncode, said)


def test_memory(folder):
    """A long recording, with a bound that is far below it."""
    path = os.path.join(folder, "a.ndb")
    with Daemon() as daemon:
        r = record(daemon, path, "t", "--policy", "block", "--count", 256)
        pub(daemon, "t", "--repeat", 256, "--block", data=bytes(1 << 20))
        _, status, usage = os.wait4(r.process.pid, 0)
        r.process.returncode = os.waitstatus_to_exitcode(status)
        assert r.process.returncode == 0
        assert os.path.getsize(path) > 256 << 20
        p = subprocess.Popen([ndbus_run.NDBUS, "replay", path, "--rate", "0", "--block", "--url", daemon.unix])
        _, status, played = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        assert p.returncode == 0
        # what a window of 64 MiB may hold, twice; sanitizers keep what was freed
        if b"__asan" not in get(ndbus_run.NDBUS):
            for what in [usage, played]:
                assert what.ru_maxrss < 160 << 10, f"{what.ru_maxrss} KiB"


ndbus_run.run_tests(globals())
