"""The command line. It imports PyTorch only for a command that needs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from repper import __version__
from repper.basics.errors import RepperError, failure_of_machine, nearest, unknown
from repper.basics.files import check_one_of
from repper.basics.registry import mistake_in_own_code
from repper.cli import check, completion, edge, export, federation, folders, paper, runs, verify
from repper.cli.arguments import Parser, add_own, own_options
from repper.cli.show import tell, tell_traceback

TAKES_OWN = ("run", "compare", "join")
"""Commands that take methods, heads, rules and encoders of the user's own."""
EXAMPLES = """examples:
  repper run
  repper run --data digits --clients 20 --alpha 0.1 --personalize svm --out my-run
  repper run --config my.toml --rounds 50 --resume
  repper run --method my_file.py:MyMethod
  repper compare --methods repper+linear,fedavg,fedavg+finetune --seeds 3
  repper reproduce table2 --preset small --out table2
  repper report my-run --out report.html
  repper join --run my-run --clients 10 --alpha 1 --epochs 100
  repper check my-photos
  repper partition --data digits --alpha 0.1 --out bubbles.png
  repper predict --run my-run --client 7 image.png
  repper export my-run --out my-model
  repper personalize --encoder encoder.onnx --images my-photos --out my-model
  repper predict my-model photo.jpg
  repper verify my-run
  repper runs list
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        return _dispatch(arguments)
    except BrokenPipeError:
        # Whoever read our output has left, as in `repper run | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            tell_traceback()
        message, code = _explain(error)
        hint = " (--debug shows where)" if code == 1 and not debug else ""
        tell(f"repper: {' '.join(message.split())}{hint}")
        return code


def _explain(error: BaseException) -> tuple[str, int]:
    """An error as one sentence, and the exit code that goes with it."""
    if isinstance(error, RepperError):
        return str(error), 2
    if isinstance(error, KeyboardInterrupt):
        return "; ".join(["interrupted", *map(str, error.args)]), 130
    if own := mistake_in_own_code(error):
        return own, 2
    if sentence := failure_of_machine(error):
        nameless = isinstance(error, OSError) and not error.filename
        return sentence + (" while writing the output" if nameless else ""), 2
    return f"internal error, {type(error).__name__}: {error}", 1


def _dispatch(arguments: list[str]) -> int:
    parser, commands = _parser()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        raise unknown("command", arguments[0], commands)
    if arguments and arguments[0] in TAKES_OWN and (own := own_options(arguments)):
        add_own(commands[arguments[0]], own)
    for argument in arguments:
        flag, _, value = argument.partition("=")
        if flag.startswith("-") and value == "--":  # argparse would take it for no value at all
            raise RepperError(f"{flag} needs a value, got '--'")
    options, rest = parser.parse_known_args(arguments)
    if rest:
        known = options.parser._option_string_actions if options.command else ["--help"]
        guess = nearest(rest[0].split("=")[0], known)
        hint = f", did you mean {guess}?" if guess else f" (see {parser.prog} --help)"
        raise RepperError(f"unknown option {rest[0]}{hint}")
    if options.command is None:
        parser.print_help()
        return 0
    check_one_of(getattr(options, "resume", False), getattr(options, "overwrite", False))
    command: Callable[[argparse.Namespace], int] = options.function
    try:
        return command(options)
    except KeyboardInterrupt as error:
        if hasattr(options, "resume") and not getattr(options, "estimate", False):
            raise KeyboardInterrupt("the same command with --resume continues") from error
        raise


def _parser() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(
        prog="repper",
        description="Federated image classifiers, fitted to each client.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"repper {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    built: dict[str, Parser] = {}

    def add(name: str, help: str, function: Callable[[argparse.Namespace], int]) -> Parser:
        built[name] = commands.add_parser(
            name, help=help, description=help[0].upper() + help[1:] + ".", allow_abbrev=False
        )
        built[name].set_defaults(function=function, parser=built[name])
        built[name].add_argument(
            "--debug", action="store_true", help="show the traceback of an error"
        )
        return built[name]

    for family in (runs, folders, check, export, edge, paper, verify, federation):
        family.add_commands(add)
    completion.add_commands(add, _parser)
    return parser, built
