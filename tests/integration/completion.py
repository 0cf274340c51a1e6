#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""What bash completes: every subcommand, option and choice that the command itself has, and no other.

completion.py FILE: the completion; the command's own answers are the judge, by what it accepts.
"""

import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

from ndbus_run import NDBUS, run, skip

BASH = shutil.which("bash") or skip("there is no bash")
COMMANDS = {"pub", "sub", "record", "replay", "info", "pack", "unpack", "request", "reply", "stat", "ping",
            "bench"}
POLICIES = {"drop-oldest", "drop-newest", "latest", "block", "disconnect"}


def complete(*words):
    """What is offered for the last of these words, as bash splits them."""
    script = ('source "$1"; shift; program=$1; COMP_WORDS=(ndbus "${@:2}"); COMP_CWORD=$(($# - 1)); '
              '_ndbus "$program" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"; '
              'printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run([BASH, "--norc", "-c", script, "bash", sys.argv[1], NDBUS, *words],
                          capture_output=True, check=True)
    assert not done.stderr, done.stderr
    return set(done.stdout.decode().split())


def options_in_help(command):
    """By another reading than the completion's: words that begin a line."""
    lines = run(command, "--help", check=0).out.split("\noptions:\n")[1].splitlines()
    return {line.split()[0] for line in lines if line.startswith("  --")}


def main():
    assert complete("") == COMMANDS | {"--help", "--version"}, complete("")
    assert complete("re") == {c for c in COMMANDS if c.startswith("re")}
    assert complete("--v") == {"--version"}
    for command in COMMANDS:
        offered = complete(command, "-")
        assert offered == options_in_help(command), (command, offered)
        for option in offered:
            assert "no such option" not in run(command, option).err, (command, option)
    for words in [["sub", "--policy", ""], ["sub", "x", "--policy", ""], ["sub", "--policy", "="]]:
        assert complete(*words) == POLICIES, words
    assert complete("sub", "--policy", "=", "la") == {"latest"}
    assert complete("sub", "--policy", "drop-n") == {"drop-newest"}
    assert complete("sub", "--depth", "") == set()
    assert complete("pub", "topic", "") == set()
    assert complete("nonsense", "-") == set()
    assert complete("sub", "a/b|c$(x)", "-") == options_in_help("sub")
    print("ok")


main()
