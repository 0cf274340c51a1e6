#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Rights of users and groups on a Unix socket: every verb, wildcards, what is retained, reloads.

The tests ask as the user who runs them, and say which rules name that user.
"""

import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import ndbus_run
from ndbus_run import Daemon, Sub, put, run

ME = f"user:{os.getuid()}"
NOBODY = "user:4294967000"


def allow(*rules):
    return [word for rule in rules for word in ("--allow", rule)]


def pub(daemon, topic, *arguments, check=0, url=None):
    return run("pub", topic, put(daemon.folder, "blob", "x"), "--dtype", "uint8", *arguments,
               url=url or daemon.unix, check=check)


def lacks(done, right, on=None):
    assert "not permitted" in done.err and f"the right '{right}'" in done.err, done.err
    assert on is None or f" on {on} is missing" in done.err, done.err


def counters(daemon, url):
    return json.loads(run("stat", "--json", url=url, check=0).out)["counters"]


def test_nobody_is_named(folder):
    with Daemon(*allow(f"{NOBODY} publish,subscribe,stats")) as daemon:
        for url in [daemon.unix, daemon.tcp]:
            for command in [["ping"], ["stat"], ["sub", "t"]]:
                done = run(*command, url=url, check=1)
                assert "not permitted" in done.err and "no rule allows anything to" in done.err, done.err
        assert f"uid={os.getuid()}" in run("ping", url=daemon.unix, check=1).err


def test_verbs(folder):
    rules = [f"{ME} publish,retain p/**", f"{ME} publish q", f"{ME} subscribe s/** p/a",
             f"{ME} subscribe,block b/**", f"{ME} subscribe,group g/**"]
    with Daemon(*allow(*rules)) as daemon:
        # publish
        pub(daemon, "p/a")
        pub(daemon, "p/a", "--retain")
        lacks(pub(daemon, "s/a", check=1), "publish", "s/a")
        lacks(pub(daemon, "q", "--retain", check=1), "retain", "q")
        pub(daemon, "q")
        # subscribe
        for pattern in ["s/x", "s/**", "p/a", "p/*", "**", "*"]:
            run("sub", pattern, "--timeout", "0", url=daemon.unix, check=0)
        for pattern in ["p/b", "q", "x/**", "p/*/c"]:
            lacks(run("sub", pattern, "--timeout", "0", url=daemon.unix, check=1), "subscribe", pattern)
        # block and group are allowed on all of the pattern, or not at all
        for right, options in [("block", ["--policy", "block"]), ("group", ["--group", "n"])]:
            letter = right[0]
            for pattern in [f"{letter}/x", f"{letter}/**", f"{letter}/*/z"]:
                run("sub", pattern, "--timeout", "0", *options, url=daemon.unix, check=0)
            for pattern in ["s/x", "*/x", "**"]:
                lacks(run("sub", pattern, "--timeout", "0", *options, url=daemon.unix, check=1),
                      "subscribe" if right == "group" and pattern != "s/x" else right, pattern)
        # stats
        lacks(run("stat", url=daemon.unix, check=1), "stats")
        # the daemon counts, and goes on
        pub(daemon, "p/a")
        done = run("pub", "s/a", os.path.join(daemon.folder, "blob"), "--dtype", "uint8",
                   "--wait-subscribers", 1, "--timeout", "0.2", url=daemon.unix, check=1)
        assert "timed out" in done.err, done.err


def test_groups_of_the_system(folder):
    for gid, works in [(os.getgid(), True), (4294967000, False), *[(g, True) for g in os.getgroups()]]:
        with Daemon(*allow(f"group:{gid} publish,stats")) as daemon:
            run("ping", url=daemon.unix, check=0 if works else 1)
    with Daemon(*allow("anyone stats")) as daemon:
        for url in [daemon.unix, daemon.tcp]:
            assert counters(daemon, url)["denied"] >= 0


def test_wildcards_get_what_they_may(folder):
    with Daemon(*allow(f"{ME} publish,retain,stats", f"{ME} subscribe open/** half/*/x")) as daemon:
        for topic in ["open/a", "secret/a", "half/1/x", "half/1/y"]:
            pub(daemon, topic, "--retain")
        sub = Sub(daemon.unix, "**", "--count", 4)
        for topic in ["secret/a", "half/2/y", "half/2/x", "secret/b/c", "open/b/c", "half/x"]:
            pub(daemon, topic)
        topics = [line.split("\t")[0] for line in sub.finish()]
        assert topics == ["half/1/x", "open/a", "half/2/x", "open/b/c"], topics
        done = json.loads(run("stat", "--json", url=daemon.unix, check=0).out)
        assert done["counters"]["messages_unmatched"] >= 4, done["counters"]


def test_requests_need_no_right_for_the_answer(folder):
    blob = put(folder, "blob", "x")
    with Daemon(*allow(f"{ME} publish,subscribe,group svc")) as daemon:
        reply = Sub(daemon.unix, "svc", "--exec", "printf '\\223NUMPY' >/dev/null", "--count", 1,
                    command="reply")
        done = run("request", "svc", blob, "--dtype", "uint8", url=daemon.unix, check=0)
        assert done.out.startswith("svc\t"), done.out
        reply.finish()


def test_what_is_refused_at_the_start(folder):
    for rule, says in [
            ("anyone", "'anyone' is not WHO RIGHT,RIGHT PATTERN"),
            ("anybody publish", "'anybody' is not user:NAME, group:NAME, token:NAME or anyone"),
            ("user:no-such-user publish", "there is no user 'no-such-user'"),
            ("group:no-such-group publish", "there is no group 'no-such-group'"),
            ("user:4294967295 publish", "'4294967295' is no number of a user"),
            ("anyone read", "'read' is not publish, subscribe, block, retain, group or stats"),
            ("anyone publish a//b", "pattern 'a//b' has an empty segment"),
            ("anyone subscribe $reply/**", "topics that begin with '$' are the system's"),
            ("anyone publish " + " ".join(["a"] * 65), "the limit is 64 patterns of one rule"),
    ]:
        done = subprocess.run([ndbus_run.NDBUSD, "--check-config", "--allow", rule], capture_output=True,
                              text=True, timeout=ndbus_run.DEADLINE)
        assert done.returncode == 2 and done.stderr.startswith("ndbusd: --allow: "), done.stderr
        assert says in done.stderr, done.stderr
        config = put(folder, "c", f"# rules\nallow = {rule}\n")
        done = subprocess.run([ndbus_run.NDBUSD, "--check-config", "--config", config],
                              capture_output=True, text=True, timeout=ndbus_run.DEADLINE)
        assert done.returncode == 2 and "c:2: allow: " in done.stderr, done.stderr


def reload(daemon, folder, text):
    put(folder, "c", text)
    daemon.process.send_signal(signal.SIGHUP)
    log = b""
    while b"reloaded config=" not in log:
        piece = os.read(daemon.process.stderr.fileno(), 65536)
        assert piece, log
        log += piece
    return log.decode()


def test_reload(folder):
    everything = f"allow = {ME} publish,subscribe,block,retain,group,stats\n"
    config = put(folder, "c", everything)
    blob = put(folder, "blob", "x")
    with Daemon("--config", config) as daemon:
        subs = {name: Sub(daemon.unix, *arguments) for name, arguments in {
            "wide": ["**"], "narrow": ["b"], "block": ["a/**", "--policy", "block"],
            "group": ["a/*", "--group", "g"]}.items()}
        stream = subprocess.Popen([ndbus_run.NDBUS, "pub", "b", blob, "--dtype", "uint8", "--repeat", "0",
                                   "--rate", "100", "--url", daemon.unix], stderr=subprocess.PIPE)
        assert subs["narrow"].read_line()
        assert "the rules have changed" in reload(
            daemon, folder, f"allow = {ME} publish,subscribe a/**\nallow = {ME} stats\n")
        # what is not allowed any more ends, and says why
        for name, right, pattern in [("narrow", "subscribe", "b"), ("block", "block", "a/**"),
                                     ("group", "group", "a/*")]:
            subs[name].finish(check=1)
            assert f"the right '{right}' on {pattern} is missing" in subs[name].said, subs[name].said
        while counters(daemon, daemon.unix)["denied"] < 4:  # the stream's header was accepted before
            pass
        stream.send_signal(signal.SIGINT)
        _, said = stream.communicate(timeout=ndbus_run.DEADLINE)
        assert stream.returncode == 1 and b"the right 'publish' on b is missing" in said, said
        # what is allowed goes on, with the topics that are
        pub(daemon, "a/1")
        while True:
            line = subs["wide"].process.stdout.readline().decode()
            if line.startswith("a/1\t"):
                break
            assert line.startswith("b\t"), line
        assert "rules have changed" not in reload(
            daemon, folder, f"allow = {ME} publish,subscribe a/**\nallow = {ME} stats\n")
        pub(daemon, "a/2")
        assert subs["wide"].process.stdout.readline().startswith(b"a/2\t")
        # nothing at all: the connection ends, and when it is allowed again it is there again
        reload(daemon, folder, f"allow = {NOBODY} publish\n")
        subs["wide"].finish(check=1)
        assert "the right 'subscribe' on ** is missing" in subs["wide"].said, subs["wide"].said
        assert "no rule allows anything" in pub(daemon, "b", check=1).err
        reload(daemon, folder, "")
        pub(daemon, "b")


ndbus_run.run_tests(globals())
