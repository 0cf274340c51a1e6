# SPDX-License-Identifier: MIT
"""A daemon and the command for tests that are written in Python.

NDBUS and NDBUSD name the programs (meson sets them). Waiting is for events: READY=1 of the daemon,
"subscribed to" of `ndbus sub`, the end of a process; each with a deadline that only a hang reaches.
"""

import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

NDBUS = os.environ["NDBUS"]
NDBUSD = os.environ["NDBUSD"]
DEADLINE = 120

SKIP = 77

PRCTL = ctypes.CDLL(None).prctl  # found now: after a fork little may be done
PR_SET_PDEATHSIG = 1


def skip(why):
    print("skipped:", why)
    sys.exit(SKIP)


def put(folder, name, data, mode=None):
    """A file with these bytes, or this text; mode: its permissions, else as the umask says."""
    path = os.path.join(folder, name)
    with open(path, "wb") as f:
        f.write(data.encode() if isinstance(data, str) else data)
    if mode is not None:
        os.chmod(path, mode)
    return path


def run_tests(names):
    """Every function test_... of globals(), in order, each with a folder of its own; the command line
    may choose some of them."""
    for name, test in list(names.items()):
        if name.startswith("test_") and (len(sys.argv) < 2 or name in sys.argv):
            with tempfile.TemporaryDirectory(prefix="ndbus-test-") as folder:
                test(folder)
            print("ok", name, flush=True)


def environment(more=None):
    """For the programs: this process's own, but a sanitizer that was loaded into Python they have in
    themselves already."""
    return {**{k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}, **(more or {})}


def run(*arguments, url=None, input=None, env=None, check=None, timeout=DEADLINE):
    """Run the command; check: the exit status it must have."""
    env = environment(env)
    if url:
        env["NDBUS_URL"] = url
    done = subprocess.run([NDBUS, *map(str, arguments)], input=input, capture_output=True,
                          env=env, timeout=timeout)
    done.out = done.stdout.decode("utf-8", "replace")
    done.err = done.stderr.decode("utf-8", "replace")
    if check is not None:
        assert done.returncode == check, (
            f"ndbus {' '.join(map(str, arguments))}: status {done.returncode}, not {check}\n"
            f"{done.out}{done.err}")
    return done


def end_with_parent():
    """A test that crashes, or fails while a process is stopped, takes it with it: who runs the test waits
    until its output is closed."""
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)


class Daemon:
    """ndbusd in a private folder, on a Unix socket there and on a TCP port of the system's choice.

    shell: what a shell is to do to start it, "$@" being the command line.
    """

    def __init__(self, *options, shell='exec "$@"'):
        self.options = options
        self.shell = shell
        self.folder = tempfile.mkdtemp(prefix="ndbus-test-")
        self.unix = "unix:" + os.path.join(self.folder, "s")
        self.tcp = None
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def start(self):
        path = os.path.join(self.folder, "notify")
        if os.path.exists(path):
            os.unlink(path)
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(path)
        tcp = self.tcp or "tcp://127.0.0.1:0"
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", self.shell, "sh", NDBUSD, "--listen", self.unix, "--listen", tcp, *self.options],
            env=environment({"NOTIFY_SOCKET": path}), stderr=subprocess.PIPE, preexec_fn=end_with_parent)
        notify.settimeout(DEADLINE)
        try:
            text = notify.recv(65536).decode()
            while "READY=1" not in text or "tcp://" not in text:
                text += "\n" + notify.recv(65536).decode()
        except socket.timeout:
            self.process.kill()
            raise AssertionError("the daemon is not ready: " +
                                 self.process.stderr.read().decode())
        finally:
            notify.close()
        status = [l for l in text.splitlines() if l.startswith("STATUS=")][-1]
        self.tcp = [word for word in status.split() if word.startswith("tcp://")][0].rstrip(",")

    def stop(self):
        self.process.terminate()
        _, log = self.process.communicate(timeout=DEADLINE)
        assert self.process.returncode == 0, (self.process.returncode, log.decode())

    def __exit__(self, kind, value, trace):
        try:
            if kind is None:
                self.stop()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                _, log = self.process.communicate()
                print(log.decode(), file=sys.stderr)
            shutil.rmtree(self.folder, ignore_errors=True)


class Sub:
    """`ndbus sub`, or `ndbus reply`, that has said that it is subscribed."""

    def __init__(self, url, *arguments, env=None, command="sub"):
        self.process = subprocess.Popen(
            [NDBUS, command, "--url", url, *map(str, arguments)], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=environment(env), preexec_fn=end_with_parent)
        self.said = ""
        self.printed = b""  # and not asked for yet
        self.wait_said("subscribed to")

    def wait_said(self, text):
        """Until it has said so on stderr."""
        fd = self.process.stderr.fileno()
        while text not in self.said:
            ready, _, _ = select.select([fd], [], [], DEADLINE)
            piece = os.read(fd, 65536) if ready else b""
            if not piece:
                self.process.kill()
                raise AssertionError(f"sub ended without '{text}': {self.said}")
            self.said += piece.decode()

    def read_line(self):
        fd = self.process.stdout.fileno()
        while b"\n" not in self.printed:
            ready, _, _ = select.select([fd], [], [], DEADLINE)
            piece = os.read(fd, 65536) if ready else b""
            assert piece, f"sub printed no line: {self.printed}"
            self.printed += piece
        line, self.printed = self.printed.split(b"\n", 1)
        return line.decode() + "\n"

    def finish(self, check=0):
        """Wait for its end; the lines it printed, without those that were read."""
        out, err = self.process.communicate(timeout=DEADLINE)
        self.said += err.decode()
        assert self.process.returncode == check, (self.process.returncode, self.said)
        return (self.printed + out).decode().splitlines()

    def interrupt(self, check=0):
        self.process.send_signal(signal.SIGINT)
        return self.finish(check)
