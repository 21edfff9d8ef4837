"""`chairlift chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from chairlift.cli.chat_flags import add_template_flag
from chairlift.cli.loading import loading
from chairlift.cli.options import add_config_flag, add_engine_flags, add_sampling_flags, ready_options, sampling_params
from chairlift.cli.printing import PrintedAnswer
from chairlift.core.errors import InvalidModel, InvalidRequest

if TYPE_CHECKING:
    from chairlift.core.types import SamplingParams
    from chairlift.llm import LLM

HELP = "/reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer."


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser("chat", help="talk to a model in the terminal", description=f"Chat. {HELP}")
    add_template_flag(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    add_sampling_flags(parser)
    add_engine_flags(parser, positional_model=True)
    add_config_flag(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Read a line, stream an answer, until the input ends."""
    from chairlift.llm import LLM
    from chairlift.worker.build import build

    if sys.stdin.isatty():
        import readline  # noqa: F401  # importing it gives `input` a history and editing

    options = ready_options(arguments)
    with loading(options.model, sys.stderr):
        built = build(options, chat_template=arguments.chat_template)
    with LLM.from_built(built) as llm:
        if built.text.chat_template is None:
            raise InvalidModel(
                f"{llm.model_name}: {built.text.lacking}: chairlift generate lets it continue a text, and "
                "--chat-template takes a template"
            )
        print(f"{llm.model_name} is ready. {HELP}", file=sys.stderr)
        Conversation(llm, sampling_params(arguments, llm.default_params(None)), arguments.system).run()
    return 0


class Conversation:
    """The turns so far, and the loop that adds to them."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._opening = [{"role": "system", "content": system}] if system is not None else []
        self.turns = list(self._opening)

    def run(self) -> None:
        """Until the input ends or /quit."""
        while (line := self._read()) is not None:
            match line.strip():
                case "":
                    continue
                case "/quit" | "/exit":
                    return
                case "/reset":
                    self.turns = list(self._opening)
                    print("A new conversation.", file=sys.stderr)
                case "/help" | "/?":
                    print(HELP, file=sys.stderr)
                case _:
                    self._say(line)

    def _read(self) -> str | None:
        """One line; None at the end of the input. Ctrl-C drops what was typed."""
        while True:
            try:
                return input("> " if sys.stdin.isatty() else "")
            except KeyboardInterrupt:
                print(file=sys.stderr)
            except UnicodeDecodeError:
                print("This line is not UTF-8.", file=sys.stderr)
            except EOFError:
                return None

    def _say(self, text: str) -> None:
        """One turn of each side. What was said before Ctrl-C stays in the conversation; what was thought never does."""
        asked = [*self.turns, {"role": "user", "content": text}]
        pieces: list[str] = []
        printed = PrintedAnswer()
        try:
            for output in self._llm.stream_chat(asked, self._params):
                for piece in output.outputs:
                    pieces.append(piece.text)
                    printed.add(piece)
                    if piece.error is not None:
                        print(f"\nThe answer could not be finished: {piece.error}", file=sys.stderr)
        except KeyboardInterrupt:
            pass
        except InvalidRequest as error:
            print(f"{error}. /reset starts a new conversation.", file=sys.stderr)
            return
        printed.end()
        self.turns = [*asked, {"role": "assistant", "content": "".join(pieces)}]
