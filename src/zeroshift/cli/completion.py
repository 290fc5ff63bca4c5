"""`zeroshift completion`: a script for bash, zsh or fish, and what the script asks for when TAB is pressed.

The script runs `zeroshift` with the variable `ZEROSHIFT_COMPLETE`, and `main` calls `answer`. typer's own completion
would import the command, which takes a second. Commands, options and names are therefore read from `completion.json`;
`scripts/write_completion.py` writes it, and a test compares it with the commands. The placeholder of an option or
argument (`FILE`, `METHOD,...`, `skip|stop`) says what is offered for it: see `_offer`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["VARIABLE", "Offer", "answer", "completion", "offer"]

VARIABLE = "ZEROSHIFT_COMPLETE"
"""Holds the name of the shell that asks."""

SHELLS = ("bash", "zsh", "fish")

PATHS = {"FILE": "file", "IMAGES": "file", "FEATURES": "file", "SOURCE": "file", "NAMES": "file", "FOLDER": "folder",
         "ENCODER": "folder"}  # fmt: skip
"""Placeholders for which the shell offers files or folders, alone or with words."""


def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")],
) -> None:
    """Print a script that lets your shell complete commands, options, methods and other names.

    Append it to the start-up file of bash or zsh, or write it to fish's folder of completions. Then open a new shell.

    For example: zeroshift completion bash >> ~/.bashrc

    For example: zeroshift completion zsh >> ~/.zshrc

    For example: zeroshift completion fish > ~/.config/fish/completions/zeroshift.fish
    """
    if shell not in SHELLS:
        raise ValueError(f"there is no completion for {shell!r}. Fix: one of {', '.join(SHELLS)}.")
    typer.echo(SCRIPTS[shell], nl=False)


@dataclass(frozen=True)
class Offer:
    """What the shell shows for the word before the cursor."""

    words: Mapping[str, str] = field(default_factory=dict)
    """Words it may become, each with a description."""
    paths: str = ""
    """`"file"` or `"folder"` if the shell offers these, too."""
    goes_on: bool = False
    """Whether a word may be continued, so that no space follows it."""


def answer(shell: str, arguments: Sequence[str]) -> None:
    """Print what a script asks for: a line with the kind of paths and "nospace", then the words. Errors print nothing.

    zsh and fish give the words of the command line. bash has split them at characters such as `:` and `=`, and gives
    the line itself; it replaces what comes after the last of these characters.
    """
    with suppress(Exception):
        words, kept = list(arguments), 0
        if shell == "bash":
            (_, *words), is_quoted = _split(os.environ["ZEROSHIFT_LINE"])
            breaks = "" if is_quoted else os.environ["ZEROSHIFT_BREAKS"]
            kept = max((words[-1].rfind(letter) + 1 for letter in breaks), default=0)
        offered = offer(words[:-1], words[-1])
        lines = [f"{offered.paths or 'none'} {'nospace' if offered.goes_on else 'space'}"]
        lines += [w[kept:] if shell == "bash" else f"{w}\t{about}" for w, about in offered.words.items()]
        sys.stdout.write("\n".join([*lines, ""]))


def _split(line: str) -> tuple[list[str], bool]:
    """The words of a line of bash, without quotes, and whether the last is in quotes. The last is what is being typed
    and may be empty.

    >>> _split("zeroshift adapt 'my fil"), _split("zeroshift adapt ")
    ((['zeroshift', 'adapt', 'my fil'], True), (['zeroshift', 'adapt', ''], False))
    """
    words, quote, escaped = [""], "", False
    for letter in line:
        if escaped:
            words[-1] += letter
            escaped = False
        elif letter == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote, words[-1] = ("", words[-1]) if letter == quote else (quote, words[-1] + letter)
        elif letter in "'\"":
            quote = letter
        elif not letter.isspace():
            words[-1] += letter
        elif words[-1]:
            words.append("")
    return words, bool(quote)


def offer(before: Sequence[str], typed: str) -> Offer:
    """What may stand in place of `typed` after the words `before`.

    >>> list(offer([], "ad").words), list(offer(["adapt", "--method"], "transc").words)
    (['adapt'], ['transclip'])
    >>> list(offer(["adapt", "-m", "tda", "--set"], "released=").words)
    ['released=true', 'released=false']
    """
    return _CommandLine(_load(), before, typed).offer()


def _load() -> Any:
    return json.loads(Path(__file__).with_name("completion.json").read_text(encoding="utf-8"))


class _CommandLine:
    """The command, the options given so far with their values, and how many arguments there are."""

    def __init__(self, data: Any, before: Sequence[str], typed: str) -> None:
        self.data, self.typed = data, typed
        self.command = data
        self.given: dict[str, list[str]] = {}
        self.n_arguments = 0
        self.waiting = ""
        """The option whose value is being typed."""
        self.only_arguments = False
        for word in before:
            self._read(word)

    def _read(self, word: str) -> None:
        if self.waiting:
            self.given[self.waiting].append(word)
            self.waiting = ""
        elif word == "--" and not self.only_arguments:
            self.only_arguments = True
        elif word.startswith("-") and not self.only_arguments:
            name, equals, value = word.partition("=")
            option = self._find(name)
            self.given.setdefault(option, []).extend([value] if equals else [])
            if not equals and self._options.get(option, {}).get("takes"):
                self.waiting = option
        elif "commands" in self.command:
            self.command = self.command["commands"].get(word, {})
        else:
            self.n_arguments += 1

    @property
    def _options(self) -> Any:
        return self.command.get("options", {})

    def _find(self, name: str) -> str:
        """The documented name of an option."""
        return next((long for long, one in self._options.items() if name in one.get("also", ())), name)

    def offer(self) -> Offer:
        if not self.command:
            return Offer()
        if self.waiting:
            return self._offer(self._options[self.waiting]["takes"], self.typed)
        if self.typed.startswith("--") and "=" in self.typed and not self.only_arguments:
            name, _, value = self.typed.partition("=")
            offered = self._offer(self._options.get(self._find(name), {}).get("takes", ""), value)
            words = {f"{name}={word}": about for word, about in offered.words.items()}
            return Offer(words, offered.paths, offered.goes_on)
        if self.typed.startswith("-") and not self.only_arguments:
            return Offer(self._unused_options())
        if "commands" in self.command:
            return Offer(self._matching({name: one["about"] for name, one in self.command["commands"].items()}))
        arguments = self.command.get("arguments", [])
        if self.n_arguments < len(arguments):
            return self._offer(arguments[self.n_arguments], self.typed)
        if arguments and arguments[-1].endswith("...") and not arguments[-1].endswith(",..."):
            return self._offer(arguments[-1], self.typed)
        return Offer(self._unused_options())

    def _unused_options(self) -> dict[str, str]:
        unused = {
            name: one["about"] for name, one in self._options.items() if one.get("repeats") or name not in self.given
        }
        return self._matching({**unused, "--help": "Describe the command and exit."})

    def _matching(self, words: Mapping[str, str]) -> dict[str, str]:
        return {word: about for word, about in words.items() if word.startswith(self.typed)}

    def _offer(self, placeholder: str, typed: str) -> Offer:
        """What a placeholder stands for: alternatives with a bar between them, each a kind of words or paths in upper
        case, a list of such (`KIND,...`), a range (`1-5`) or a word itself. Dots at the end mean several arguments."""
        words: dict[str, str] = {}
        paths, goes_on = "", False
        for kind in re.sub(r"(?<!,)\.\.\.$", "", placeholder).split("|"):
            base, is_list = kind.removesuffix(",..."), kind.endswith(",...")
            paths = paths or PATHS.get(base, "")
            head = typed[: typed.rfind(",") + 1] if is_list else ""
            goes_on = goes_on or is_list or base.endswith("=VALUE")
            used = head.split(",")
            for word, about in self._words(base, typed[len(head) :], is_list=is_list):
                if word not in used and f"{head}{word}".startswith(typed):
                    words[f"{head}{word}"] = about
        if words and ":" in typed:
            paths = ""  # the word is a pack or the like, and no file
        return Offer(
            words, paths, (goes_on and not all(map(_is_setting, words))) or any(w.endswith(":") for w in words)
        )

    def _words(self, kind: str, item: str, *, is_list: bool) -> Iterator[tuple[str, str]]:
        """The words of a kind, with descriptions; `item` is what is typed of one."""
        if limits := re.fullmatch(r"(\d)-(\d)", kind):
            yield from ((str(number), "") for number in range(int(limits[1]), int(limits[2]) + 1))
        elif kind != kind.upper() or kind.isdigit():
            yield kind, ""
        elif kind in self._makers:
            yield from self._makers[kind](item, is_list)
        else:
            yield from self.data["words"].get(kind, {}).items()

    @cached_property
    def _makers(self) -> dict[str, Callable[[str, bool], Iterator[tuple[str, str]]]]:
        return {
            "METHOD": self._methods,
            "FEATURES": lambda item, is_list: ((f"pack:{n}", a) for n, a in self.data["words"]["PACK"].items()),
            "SOURCE": lambda item, is_list: iter(self.data["words"]["DATASET"].items()),
            "PRESET": lambda item, is_list: ((name, "") for name in self._method(self._chosen()[0]).get("presets", ())),
            "NAME=VALUE": lambda item, is_list: self._settings(self._chosen()[0], item),
            "METHOD.NAME=VALUE": self._settings_of_methods,
        }

    def _methods(self, item: str, is_list: bool) -> Iterator[tuple[str, str]]:
        """Names; after a plus sign what can be added to the method; in a list also groups of methods."""
        for name, one in self.data["methods"].items():
            yield name, one["about"]
            if item.startswith(f"{name}+"):
                whole = item[: item.rfind("+") + 1]
                added = [each for each in one["adds"] if is_list or each == "filter"]
                yield from ((whole + each, one["about"]) for each in added if each not in whole.split("+"))
        if is_list:
            yield from self.data["words"]["GROUP"].items()
        for name in _plug_ins():
            yield name, "a plug-in"

    def _method(self, name: str) -> Any:
        return self.data["methods"].get(name.split("+")[0], {})

    def _chosen(self) -> list[str]:
        """The methods that the options select."""
        for option in ("--method", "--methods"):
            if self.given.get(option):
                return self.given[option][-1].split(",")
        online = {"--online", "--stream", "--save-state"} & set(self.given)
        return [self.data["defaults"]["online" if online else "transductive"]]

    def _settings(self, method: str, item: str) -> Iterator[tuple[str, str]]:
        """`NAME=` for each parameter; after the equals sign its values, if they are words."""
        parameters = dict(self._method(method).get("parameters", {}))
        if method.endswith("+filter"):
            parameters |= self.data["filter"]
        name, equals, _ = item.partition("=")
        if equals:
            values = parameters.get(name, {}).get("values", "")
            yield from ((f"{name}={value}", "") for value in values.split("|") if value)
            return
        used = {setting.partition("=")[0] for setting in self.given.get("--set", ())}
        yield from ((f"{name}=", one["about"]) for name, one in parameters.items() if name not in used)

    def _settings_of_methods(self, item: str, is_list: bool) -> Iterator[tuple[str, str]]:
        """`METHOD.` for each method that is compared; after the point its parameters."""
        method, point, setting = item.partition(".")
        if point:
            yield from ((f"{method}.{word}", about) for word, about in self._settings(method, setting))
            return
        named = [name for name in self._chosen() if name in self.data["methods"]] if "--methods" in self.given else []
        yield from ((f"{name}.", self._method(name)["about"]) for name in named or self.data["methods"])


def _is_setting(word: str) -> bool:
    """Whether a word is a parameter with its value, which is complete."""
    return "=" in word and not word.endswith("=")


def _plug_ins() -> list[str]:
    """Names of methods of other packages; their classes are not imported."""
    from importlib.metadata import entry_points

    return [entry.name for entry in entry_points(group="zeroshift.methods")]


BASH = r"""# bash completion for zeroshift
_zeroshift() {
    local paths= space= word program=$1
    type -P "$program" >/dev/null || program=zeroshift  # an alias
    COMPREPLY=()
    {
        read -r paths space
        while IFS= read -r word; do COMPREPLY+=("$word"); done
    } < <(ZEROSHIFT_COMPLETE=bash ZEROSHIFT_LINE="${COMP_LINE:0:COMP_POINT}" ZEROSHIFT_BREAKS="$COMP_WORDBREAKS" \
        "$program" 2>/dev/null)
    if [[ $paths == none ]]; then
        compopt +o default 2>/dev/null
    elif (( ${#COMPREPLY[@]} )); then
        local kind=-f
        [[ $paths == folder ]] && kind=-d
        while IFS= read -r word; do
            [[ -d $word ]] && word+=/ && space=nospace
            printf -v word %q "$word"
            COMPREPLY+=("$word")
        done < <(compgen "$kind" -- "$2")
    elif [[ $paths == folder ]]; then
        compopt -o dirnames +o default 2>/dev/null
    fi
    [[ $space == nospace ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o default -F _zeroshift zeroshift
"""

ZSH = r"""#compdef zeroshift
# zsh completion for zeroshift
_zeroshift() {
    local -a lines entries
    local line program="${(Q)words[1]}"
    whence -p -- "$program" >/dev/null || program=zeroshift  # an alias
    lines=("${(@f)$(ZEROSHIFT_COMPLETE=zsh "$program" "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    for line in "${(@)lines[2,-1]}"; do
        [[ -n $line ]] && entries+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    local -a space
    [[ $lines[1] == *nospace ]] && space=(-S '')
    (( $#entries )) && _describe -t names 'zeroshift' entries "${(@)space}"
    if [[ $lines[1] != none* && -n $lines[1] ]]; then
        [[ $PREFIX == --*=* ]] && compset -P '*='
        if [[ $lines[1] == folder* ]]; then _files -/; else _files; fi
    fi
}
if [[ $funcstack[1] == _zeroshift ]]; then
    _zeroshift "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
    compdef _zeroshift zeroshift
fi
"""

FISH = r"""# fish completion for zeroshift
function __zeroshift_ask
    set -l line (commandline -cp)
    if test "$line" != "$__zeroshift_line"; or test -z "$__zeroshift_answer"
        set -l typed (commandline -ct | string trim --left --chars "'\"" | string unescape)
        set -l words (commandline -opc)
        command -q -- $words[1]; or set words[1] zeroshift # an alias
        set -g __zeroshift_answer (env ZEROSHIFT_COMPLETE=fish $words "$typed" 2>/dev/null)
        set -g __zeroshift_line $line
    end
end
function __zeroshift_words
    __zeroshift_ask
    test (count $__zeroshift_answer) -gt 1; and printf '%s\n' $__zeroshift_answer[2..-1]
end
function __zeroshift_paths
    __zeroshift_ask
    string match -q -r '^(file|folder)' -- "$__zeroshift_answer[1]"
end
complete --command zeroshift --no-files --arguments '(__zeroshift_words)'
complete --command zeroshift --condition __zeroshift_paths --force-files
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
