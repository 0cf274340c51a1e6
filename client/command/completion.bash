# SPDX-License-Identifier: MIT
#
# Completion of ndbus for bash: subcommands, options, and the choices of an option that has some.
# Everything is read from --help when it is asked for, so there is no second list to keep; where no
# option is meant, files are completed.

# The words of `ndbus --help` that are subcommands.
_ndbus_commands() {
        "$1" --help 2>/dev/null | sed -n '/^commands:$/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p'
}

# "--name VALUE" or "--name" of each option of a subcommand.
_ndbus_options() {
        "$1" "$2" --help 2>/dev/null | sed -n '/^options:$/,$s/^  \(--[a-z][a-z-]*\)\( [^ ][^ ]*\)\{0,1\}\(  .*\)\{0,1\}$/\1\2/p'
}

_ndbus() {
        local program=$1 word=$2 before=$3 command=${COMP_WORDS[1]} options value

        COMPREPLY=()
        if [ "$COMP_CWORD" -eq 1 ]; then
                mapfile -t COMPREPLY < <(compgen -W "$(_ndbus_commands "$program") --help --version" -- "$word")
                return
        fi
        options=$(_ndbus_options "$program" "$command")
        # bash takes "--policy=la" for three words
        if [ "$word" = "=" ]; then
                word=
        elif [ "$before" = "=" ]; then
                before=${COMP_WORDS[COMP_CWORD - 2]}
        fi
        value=$(sed -n "s/^${before//[^a-z-]/.} //p" <<<"$options")
        case $value in
        *'|'*)
                mapfile -t COMPREPLY < <(compgen -W "${value//|/ }" -- "$word")
                ;;
        FILE | DIR)
                compopt -o default 2>/dev/null
                ;;
        '')
                if [[ $word == -* ]]; then
                        mapfile -t COMPREPLY < <(compgen -W "$(cut -d ' ' -f 1 <<<"$options")" -- "$word")
                else
                        compopt -o default 2>/dev/null
                fi
                ;;
        esac
}

complete -F _ndbus ndbus
