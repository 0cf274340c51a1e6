# SPDX-License-Identifier: MIT
# Sourced by the checks: where the tree is, what is in it, and how to complain. Does without git, so
# that it works in an unpacked archive, and in a clone that belongs to somebody else.

cd "$(dirname "$(readlink -f "$0")")/../.." || exit 99

# tree_files NAME...: files of these names, as find -name knows them, not those of builds
tree_files() {
        local name names=()

        for name in "$@"; do
                names+=(-o -name "$name")
        done
        find . \( -name '.?*' -o -name 'build*' -type d \) -prune -o -type f \
                \( "${names[@]:1}" \) -print | sed 's|^\./||' | LC_ALL=C sort
}

complaints=0

# complain TEXT: says it on stdout; the check fails at its end
complain() {
        printf '%s\n' "$*"
        complaints=$((complaints + 1))
}

conclude() {
        echo "$complaints complaints"
        [ "$complaints" -eq 0 ]
}
