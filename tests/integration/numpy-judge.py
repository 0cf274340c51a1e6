#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""NumPy as an independent judge of what arrives.

Files that NumPy writes, in every dtype, order and byte order, go through `ndbus pack` and `unpack`,
through `ndbus pub`, the daemon and `ndbus sub --output` over both transports, and through `ndbus
record` and `replay`; NumPy must read the same dtype, shape, order and bytes. Padding is compared too. T01 to T12 are among them.
"""

import os
import struct
import sys
import tempfile
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import ndbus_run

try:
    import numpy as np
except ImportError:
    ndbus_run.skip("no numpy")


def payload(path):
    """What stands behind the header, as it stands."""
    with open(path, "rb") as f:
        lead = f.read(8)
        assert lead[:6] == b"\x93NUMPY", lead
        n = struct.unpack("<H", f.read(2)) if lead[6] == 1 else struct.unpack("<I", f.read(4))
        f.read(n[0])
        return f.read()


def load(path):
    try:
        return np.load(path, max_header_size=1 << 20)
    except TypeError:  # an older NumPy, without that limit
        return np.load(path)


def fill(shape, dtype):
    """Every byte its own value: floats become NaNs with payloads, and must stay what they are."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    raw = (31 * np.arange(count * dtype.itemsize, dtype=np.uint64) + 7).astype(np.uint8)
    if dtype.kind == "U":  # valid code points
        return (np.arange(count * dtype.itemsize // 4, dtype=np.uint32) % 0x500 + 0x20).astype(
            dtype.byteorder.replace("|", "<").replace("=", "<") + "u4").view(dtype).reshape(shape)
    if dtype.kind == "b":
        return (raw & 1).view(bool).reshape(shape)
    return raw.view(dtype).reshape(shape)


def cases():
    plain = ["?", "i1", "u1", "S1", "S7", "V5"]
    ordered = ["i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "U1", "U5",
               "M8[ns]", "M8[D]", "M8[25us]", "m8[s]", "m8[3W]", "m8"]
    for dtype in plain + [o + d for d in ordered for o in "<>"]:
        yield f"{dtype} 2-D", fill((3, 5), dtype)
        yield f"{dtype} Fortran", np.asfortranarray(fill((3, 5), dtype))
        yield f"{dtype} 0-d", fill((), dtype)
        yield f"{dtype} empty", fill((0, 3), dtype)
    for shape in [(0,), (2, 0), (3, 0, 5), (1,), (1, 1, 1), (7, 1), (1, 7), (2,) * 10, (1,) * 32]:
        yield f"shape {shape}", fill(shape, "<f4")
        yield f"shape {shape} Fortran", np.asfortranarray(fill(shape, ">i2"))
    yield "axes turned", fill((2, 3, 4), "<i4").transpose(1, 2, 0)
    yield "3-D Fortran", np.asfortranarray(fill((4, 3, 2), "<f8"))
    yield "1 MiB and more", fill((1200, 1000), "u1")
    yield "many chunks", fill((3000, 1111), "<i4")

    yield "T01", np.array([1.5, -2.25, 3], "<f4")
    yield "T03", np.array([0, 1, 0.4, 5.7], ">f8")
    yield "T08", np.array([1 + 2j, -0.5 - 4j], "<c8")
    yield "T09", np.array(["2015-07-04T12:59:59.5", "NaT"], "M8[ns]")
    yield "T10", np.array([(1, 2), (3, 4)],
                          np.dtype({"names": ["A", "B"], "formats": ["<f4", "<f4"],
                                    "offsets": [0, 8], "itemsize": 16}))
    yield "T11", np.array(7, "<f4")

    aligned = np.dtype([("a", "u1"), ("b", ">f8"), ("c", "<i2", (2, 3)), ("t", "M8[25us]"),
                        ("s", "S3"), ("u", "<U2"), ("v", "V3")], align=True)
    nested = np.dtype([("x", "<f4"), ("in", [("p", "u1"), ("q", aligned), ("r", ">u4", (2,))], (3,)),
                       ("y", "?")], align=True)
    tail = np.dtype({"names": ["v"], "formats": ["<i2"], "offsets": [3], "itemsize": 9})
    strange = np.dtype([("\u65e5\u672c", "<i4"), ("it's \\ \"q\"", "<f4"), ("\xb5", "<i2"),
                        (" ", "i1")])
    wide = np.dtype([(f"field number {i:060d}", "<u2") for i in range(1000)])
    for name, dtype in [("aligned", aligned), ("nested", nested), ("tail", tail),
                        ("strange names", strange), ("version 2 header", wide)]:
        yield f"record {name}", fill((3, 2), dtype)
        yield f"record {name} Fortran", np.asfortranarray(fill((3, 2), dtype))
        yield f"record {name} 0-d", fill((), dtype)
        yield f"record {name} empty", fill((0,), dtype)


def judge(name, sent, got):
    # dtypes first: NaNs and padding are no reason to compare less
    a, b = load(sent), load(got)
    assert a.dtype == b.dtype, f"{name}: dtype {b.dtype}, not {a.dtype}"
    assert a.shape == b.shape, f"{name}: shape {b.shape}, not {a.shape}"
    assert a.flags.fnc == b.flags.fnc or a.size < 2, f"{name}: the order changed"
    assert payload(sent) == payload(got), f"{name}: bytes changed"


def write(folder):
    paths = []
    for i, (name, array) in enumerate(cases()):
        path = os.path.join(folder, f"{i:04d}.npy")
        with open(path, "wb") as f:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it needs version 2 or 3
                np.lib.format.write_array(f, array)
        paths.append((name, path))
    return paths


def judge_files(folder, paths):
    packed = os.path.join(folder, "all.ndb")
    out = os.path.join(folder, "unpacked")
    ndbus_run.run("pack", "-o", packed, *[p for _, p in paths], check=0)
    lines = ndbus_run.run("unpack", packed, "-o", out, check=0).out.splitlines()
    assert len(lines) == len(paths), (len(lines), len(paths))
    for name, path in paths:
        judge(name, path, os.path.join(out, os.path.basename(path)))


def judge_daemon(folder, paths):
    with ndbus_run.Daemon() as daemon:
        for kind, url in [("unix", daemon.unix), ("tcp", daemon.tcp)]:
            out = os.path.join(folder, kind)
            sub = ndbus_run.Sub(url, "judge/*", "--count", len(paths), "--output", out,
                                "--policy", "block")
            ndbus_run.run("pub", "judge/" + kind, *[p for _, p in paths], "--timeout", 60, url=url,
                          check=0)
            lines = sub.finish()
            assert len(lines) == len(paths), (len(lines), len(paths))
            for i, ((name, path), line) in enumerate(zip(paths, lines), 1):
                cells = line.split("\t")
                assert cells[0] == "judge/" + kind and cells[1] == str(i), line
                assert cells[6] == "0", line
                judge(f"{kind} {name}", path, os.path.join(out, "judge", f"{kind}-{i}.npy"))


def judge_recording(folder, paths):
    """Recorded by two recorders over both transports, unpacked, and replayed to a subscriber."""
    first, second = (os.path.join(folder, n + ".ndb") for n in ("unix", "tcp"))
    out, unpacked = os.path.join(folder, "out"), os.path.join(folder, "unpacked")
    with ndbus_run.Daemon() as daemon:
        records = [ndbus_run.Sub(url, "judge/*", "--count", len(paths), "-o", path, "--policy", "block",
                                 command="record")
                   for url, path in [(daemon.unix, first), (daemon.tcp, second)]]
        ndbus_run.run("pub", "judge/x", *[p for _, p in paths], "--timeout", 60, url=daemon.unix, check=0)
        for record in records:
            record.finish()
        with open(first, "rb") as a, open(second, "rb") as b:
            assert a.read() == b.read(), "the transports disagree"
        sub = ndbus_run.Sub(daemon.tcp, "judge/x", "--count", len(paths), "--output", out, "--policy",
                            "block")
        ndbus_run.run("replay", first, "--rate", 0, "--timeout", 60, url=daemon.unix, check=0)
        lines = sub.finish()
    assert len(ndbus_run.run("unpack", first, "-o", unpacked, check=0).out.splitlines()) == len(paths)
    for i, ((name, path), line) in enumerate(zip(paths, lines), 1):
        assert line.split("\t")[1] == str(i) and line.split("\t")[6] == "0", line
        judge("unpacked " + name, path, os.path.join(unpacked, f"{i}.npy"))
        judge("replayed " + name, path, os.path.join(out, "judge", f"x-{i}.npy"))


def main():
    with tempfile.TemporaryDirectory(prefix="ndbus-judge-") as folder:
        paths = write(folder)
        if "files" in sys.argv:
            judge_files(folder, paths)
        elif "recording" in sys.argv:
            judge_recording(folder, paths)
        else:
            judge_daemon(folder, paths)
        print(f"numpy {np.__version__}: {len(paths)} arrays are what they were")


main()
