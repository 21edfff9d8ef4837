"""The `chairlift` command. Commands import what they need when they run, so that help and mistakes are instant."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence

import chairlift
from chairlift.cli import bench, chat, generate, serve
from chairlift.cli.config import environment_defaults, file_defaults
from chairlift.core.errors import ChairliftError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 2 for what the user can mend, 130 after Ctrl-C."""
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv, os.environ)
        if not hasattr(arguments, "run"):
            arguments.parser.print_help(sys.stderr)
            return EXIT_USAGE
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except ChairliftError as error:
        print(f"chairlift: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """The command's arguments; those not given come from the environment, then from `--config`.

    Raises:
        InvalidOption: a value from the environment or the file that makes no sense.
        SystemExit: argparse had something to say.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    command: argparse.ArgumentParser = arguments.parser
    if getattr(arguments, "config", None) is not None:
        command.set_defaults(**file_defaults(command, arguments.config))
    command.set_defaults(**environment_defaults(command, environment))
    return parser.parse_args(argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chairlift", description="Serve a language model, or run one offline, with continuous batching."
    )
    parser.add_argument("--version", action="version", version=f"chairlift {chairlift.__version__}")
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in (serve, generate, chat, bench):
        module.add_parser(commands)
    return parser
