#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""The daemon's configuration file: a start that is refused, and reloads while clients work."""

import os
import select
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import ndbus_run
from ndbus_run import Daemon, Sub, put, run


def wait_log(daemon, text):
    """Until the daemon has logged it; what it logged up to there."""
    fd = daemon.process.stderr.fileno()
    log = b""
    while text.encode() not in log:
        ready, _, _ = select.select([fd], [], [], ndbus_run.DEADLINE)
        piece = os.read(fd, 65536) if ready else b""
        assert piece, log.decode()
        log += piece
    return log.decode()


def reload(daemon, says="reloaded config="):
    daemon.process.send_signal(signal.SIGHUP)
    return wait_log(daemon, says)


def pub(daemon, size, check=0):
    return run("pub", "t", put(daemon.folder, "blob", "x" * size), "--dtype", "uint8", url=daemon.unix,
               check=check)


def ndbusd(*arguments, env=None):
    return subprocess.run([ndbus_run.NDBUSD, *arguments], capture_output=True, text=True,
                          timeout=ndbus_run.DEADLINE, env=dict(os.environ, **(env or {})))


def test_start(folder):
    bad = put(folder, "bad.conf", "memory-max = 64M\nmemory-min = 1M\n")
    for extra in [[], ["--check-config"]]:
        done = ndbusd("--config", bad, *extra)
        assert done.returncode == 2 and not done.stdout, done
        assert "bad.conf:2: memory-min: is no option; see ndbusd --help\n" in done.stderr, done.stderr
    done = ndbusd("--config", folder + "/none")
    assert done.returncode == 2 and "No such file or directory" in done.stderr, done
    good = put(folder, "good.conf", f"listen = unix:{folder}/a\n")
    done = ndbusd("--config", good, "--check-config")
    assert done.returncode == 0 and done.stdout == f"{good}: ok\n" and not done.stderr, done
    assert not os.path.exists(folder + "/a")
    # as far as can be said without opening a socket, what the start refuses; a name is asked for
    twice = put(folder, "twice.conf", f"listen = unix:{folder}/a\nlisten = unix:{folder}/a\n")
    for extra in [[], ["--check-config"]]:
        done = ndbusd("--config", twice, *extra)
        assert done.returncode == 2 and f"twice.conf:2: listen: unix:{folder}/a is there twice" in done.stderr, done
    done = ndbusd("--check-config", "--listen", "tcp://" + "x" * 64)  # longer than a label can be
    assert done.returncode == 2 and "--listen: tcp://xxx" in done.stderr, done
    done = ndbusd("--check-config", "--memory-max", "1M")
    assert done.returncode == 2 and "--memory-max: 1M is not from" in done.stderr, done


def watch(daemon, n, check=0):
    """Subscribes to n patterns on one connection."""
    return run("record", *[f"t/{i}" for i in range(n)], "-o", "/dev/null", "--timeout", 0,
               url=daemon.unix, check=check)


def test_reload(folder):
    config = put(folder, "c", "subscriptions-max = 5\n")
    with Daemon("--config", config, "--block-timeout", "1000") as daemon:
        sub = Sub(daemon.unix, "t", "--count", 2)
        pub(daemon, 1000)
        watch(daemon, 5)
        assert "5" in watch(daemon, 6, check=1).err
        put(folder, "c", "subscriptions-max = 7\nblock-timeout = 500\nlog-level = info\n"
            "memory-max = 8M\nlisten = unix:/nowhere/s\n")
        log = reload(daemon)
        assert "option=subscriptions-max from=5 to=7" in log, log
        assert "option=clients-max" not in log, log  # memory-max is not in force yet
        assert "option=memory-max: changes take effect at the next start" in log, log
        # on the command line there are listeners and block-timeout, and they win
        assert "option=listen" not in log and "option=block-timeout" not in log, log
        watch(daemon, 7)

        # a bad file changes nothing at all
        put(folder, "c", "subscriptions-max = 9\nmemory-max = 1\n")
        log = reload(daemon, "stay in force")
        assert "c:2: memory-max: 1 is not from" in log and "option=" not in log, log
        assert "7" in watch(daemon, 8, check=1).err
        os.unlink(config)
        assert "No such file" in reload(daemon, "stay in force")
        os.mkfifo(config)  # nobody writes to it
        assert "is not a file" in reload(daemon, "stay in force")
        done = ndbusd("--config", config, "--check-config")
        assert done.returncode == 2 and "is not a file" in done.stderr, done
        os.unlink(config)

        put(folder, "c", "")
        assert "option=subscriptions-max from=7 to=65536" in reload(daemon)
        watch(daemon, 8)
        pub(daemon, 500)
        assert [line.split("\t")[4] for line in sub.finish()] == ["1000", "500"]


def test_under_traffic(folder):
    config = put(folder, "c", "")
    n = 3000
    with Daemon("--config", config) as daemon:
        sub = Sub(daemon.unix, "t", "--policy", "block", "--count", n)
        blob = put(folder, "blob", "x" * 1000)
        stream = subprocess.Popen([ndbus_run.NDBUS, "pub", "t", blob, "--dtype", "uint8", "--repeat",
                                   str(n), "--block", "--url", daemon.unix])
        sub.read_line()
        for i in range(20):
            put(folder, "c", f"block-timeout = {60000 + i}\nsubscriptions-max = {100 + i}\n")
            reload(daemon)
        assert stream.wait(ndbus_run.DEADLINE) == 0
        sequences = [int(line.split("\t")[1]) for line in sub.finish()]
        assert sequences == list(range(2, n + 1))


def service_manager(daemon):
    """The socket of one that takes the place of the daemon's first."""
    path = os.path.join(daemon.folder, "notify")
    os.unlink(path)
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(path)
    notify.settimeout(ndbus_run.DEADLINE)
    return notify


def test_what_the_service_manager_hears(folder):
    config = put(folder, "c", "")
    with Daemon("--config", config) as daemon:
        with service_manager(daemon) as notify:
            for text, says in [("", "reloaded"), ("bad", "stay in force")]:
                put(folder, "c", text)
                reload(daemon, says)
                first = notify.recv(4096).decode()
                assert first.startswith("RELOADING=1\nMONOTONIC_USEC="), first
                assert notify.recv(4096) == b"READY=1"


def test_a_service_manager_that_does_not_listen(folder):
    config = put(folder, "c", "")
    with open("/proc/sys/net/unix/max_dgram_qlen", encoding="ascii") as most:
        n = int(most.read()) + 10  # more than its socket takes
    with Daemon("--config", config) as daemon:
        with service_manager(daemon) as notify:
            for _ in range(n):
                reload(daemon)
            lines = []
            while lines.count("READY=1") < 2:  # what found no room comes as one message
                lines = notify.recv(65536).decode().split("\n")
            assert lines[-1] == "READY=1", lines


def test_without_a_file(folder):
    """SIGHUP means what it means to every program: the terminal has gone."""
    with Daemon() as daemon:
        daemon.process.send_signal(signal.SIGHUP)
        assert daemon.process.wait(ndbus_run.DEADLINE) == -signal.SIGHUP
        daemon.start()


def test_a_service_without_a_file(folder):
    """The service manager's reload is no reason to end: the file may come."""
    with Daemon(shell='exec env RUNTIME_DIRECTORY=/nowhere "$@"') as daemon:
        sub = Sub(daemon.unix, "t", "--count", 1)
        reload(daemon)
        pub(daemon, 10)
        sub.finish()


ndbus_run.run_tests(globals())
