"""`chairlift generate`: continue a prompt, or serve a file of requests."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from chairlift.cli.chat_flags import add_template_flag
from chairlift.cli.loading import loading
from chairlift.cli.options import add_config_flag, add_engine_flags, add_sampling_flags, ready_options, sampling_params
from chairlift.cli.printing import PrintedAnswer
from chairlift.core.errors import InvalidOption


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "generate",
        help="continue a prompt, or answer a file of requests",
        description="Continue a prompt from the command line or standard input, or answer every request in a JSONL "
        "file in the OpenAI batch format. A batch that was interrupted goes on where it stopped.",
    )
    parser.add_argument("prompt", nargs="?", help="text to continue (default: standard input)")
    parser.add_argument("--chat", action="store_true", help="the prompt is a message to answer, not a text to continue")
    add_template_flag(parser)
    parser.add_argument("--input", type=Path, metavar="FILE", help="JSONL file of requests: custom_id, url, body")
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSONL file of results; what it has is not redone")
    parser.add_argument(
        "--served-model-name",
        action="append",
        metavar="NAME",
        help="name that requests in the file may use; repeatable",
    )
    add_sampling_flags(parser)
    add_engine_flags(parser)
    add_config_flag(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Dispatch on what was given."""
    if (arguments.input is None) != (arguments.output is None):
        raise InvalidOption("--input and --output go together")
    if arguments.input is not None:
        if arguments.prompt is not None:
            raise InvalidOption("give a prompt or --input, not both")
        return _run_file(arguments)
    return _run_prompt(arguments)


def _run_prompt(arguments: argparse.Namespace) -> int:
    from chairlift.llm import LLM
    from chairlift.worker.build import build

    prompt = arguments.prompt
    if prompt is None:
        if sys.stdin.isatty():
            print("Type a prompt and end it with Ctrl-D.", file=sys.stderr)
        prompt = _standard_input()
    if not prompt:
        raise InvalidOption("the prompt is empty")
    options = ready_options(arguments)
    with loading(options.model, sys.stderr):
        built = build(options, chat_template=arguments.chat_template)
    with LLM.from_built(built) as llm:
        params = sampling_params(arguments, llm.default_params(None))
        if arguments.chat:
            outputs = llm.stream_chat([{"role": "user", "content": prompt}], params)
        else:
            outputs = llm.stream(prompt, params)
        error: str | None = None
        printed = PrintedAnswer()
        try:
            for output in outputs:
                for piece in output.outputs:
                    printed.add(piece)
                    error = piece.error or error
        finally:
            printed.end()
    if error is not None:
        print(f"chairlift: the answer could not be finished: {error}", file=sys.stderr)
        return 1
    return 0


def _standard_input() -> str:
    """Raises InvalidOption for bytes that are no text; in some locales they would come as half characters."""
    try:
        text = sys.stdin.read()
        text.encode()
    except UnicodeError as error:
        raise InvalidOption("standard input is not UTF-8") from error
    return text


def _run_file(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from chairlift.cli.batch import Progress, check_requests, finished_ids, open_results, read_requests, run_batch
    from chairlift.cli.offline import served_offline

    wanted = check_requests(arguments.input)
    done = wanted & finished_ids(arguments.output)
    if wanted == done:
        print(f"All {len(done)} requests have their results: {arguments.output}", file=sys.stderr)
        return 0
    remaining = (request for request in read_requests(arguments.input) if request.custom_id not in done)
    options = ready_options(arguments)
    names = tuple(arguments.served_model_name or ())

    async def serve() -> Progress:
        async with AsyncExitStack() as stack:
            output = stack.enter_context(open_results(arguments.output))
            with loading(options.model, sys.stderr):
                ask = await stack.enter_async_context(served_offline(options, names, arguments.chat_template))
            with tqdm(total=len(wanted), initial=len(done), unit="req", dynamic_ncols=True) as bar:

                def show(progress: Progress) -> None:
                    rate = progress.num_output_tokens / max(bar.format_dict["elapsed"], 1e-9)
                    bar.set_postfix_str(f"{rate:.0f} output tok/s", refresh=False)
                    bar.update()

                return await run_batch(remaining, ask, output, max_in_flight=2 * options.max_num_seqs, on_result=show)

    progress = asyncio.run(serve())
    print(
        f"{len(done)} done before, {progress.num_answered} answered, {progress.num_failed} failed: {arguments.output}",
        file=sys.stderr,
    )
    return 1 if progress.num_failed else 0
