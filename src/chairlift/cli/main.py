"""The `chairlift` command. Commands import what they need when they run, so that help and mistakes are instant."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import chairlift
from chairlift.cli import (
    bench,
    calibrate,
    chat,
    evaluate,
    generate,
    inspect,
    models,
    openapi,
    plan,
    pull,
    quantize,
    replay,
    report,
    serve,
    simulate,
    top,
)
from chairlift.cli.config import environment_defaults, file_defaults
from chairlift.cli.interrupt import EXIT_INTERRUPTED
from chairlift.core.errors import ChairliftError, EngineDead

EXIT_FAILED = 1
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 2 for what the user can mend, 130 after Ctrl-C.

    What the system refuses (a full disk, memory) and an engine that dies are one line and status 1.
    """
    _prepare_streams()
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv, os.environ)
        if not hasattr(arguments, "run"):
            arguments.parser.print_help(sys.stderr)
            return EXIT_USAGE
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except ChairliftError as error:
        print(f"chairlift: {error}", file=sys.stderr)
        return EXIT_FAILED if isinstance(error, EngineDead) else EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()  # whoever read it has enough
        return 0
    except OSError as error:
        _discard_output()
        where = f"{error.filename}: " if error.filename is not None else ""
        print(f"chairlift: {where}{error.strerror or error}", file=sys.stderr)
        return EXIT_FAILED
    except MemoryError as error:
        print(f"chairlift: not enough memory: {error}", file=sys.stderr)
        return EXIT_FAILED


def _prepare_streams() -> None:
    """Text of any language may be printed wherever the output goes; a stream that was closed is an empty one.

    Its descriptor must not be taken by the next socket: whatever a library prints would be written into that.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free
    sys.stdin = sys.stdin or io.StringIO()
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115  # as long as the process
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _discard_output() -> None:
    """Standard output cannot be written. Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """The command's arguments; those not given come from the environment, then from `--config`.

    Raises:
        InvalidOption: a value from the environment or the file that makes no sense.
        SystemExit: argparse had something to say.
    """
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    command: argparse.ArgumentParser = arguments.parser
    if unknown:  # said by the command that was asked for: its --help lists what it takes
        command.error(f"unrecognized arguments: {' '.join(unknown)}")
    by_place, by_flag = (getattr(arguments, name, None) for name in ("model_tag", "model"))
    if by_place is not None and by_flag not in (None, by_place):  # one in a file or the environment is only a default
        command.error(f"two models: {by_place} and --model {by_flag}")
    if getattr(arguments, "config", None) is not None:
        command.set_defaults(**file_defaults(command, arguments.config))
    command.set_defaults(**environment_defaults(command, environment))
    complete = parser.parse_args(argv)
    for action in command._actions:
        # What is given here takes the place of other sources: argparse would add a new key to an old one.
        if isinstance(action, argparse._AppendAction) and getattr(arguments, action.dest) is not None:
            setattr(complete, action.dest, getattr(arguments, action.dest))
    return complete


class _Parser(argparse.ArgumentParser):
    """Mistakes in one line: the usage of a command with thirty flags would push it off the screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message} ({self.prog} --help shows what there is)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="chairlift", description="Serve a language model, or run one offline, with continuous batching."
    )
    parser.add_argument("--version", action="version", version=f"chairlift {chairlift.__version__}")
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    serving, models_at_hand = (serve, generate, chat), (pull, models, inspect, quantize, evaluate)
    for module in (*serving, *models_at_hand, top, bench, replay, calibrate, simulate, report, plan, openapi):
        module.add_parser(commands)
    return parser
