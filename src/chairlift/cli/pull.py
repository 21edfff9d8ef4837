"""`chairlift pull`: get a model from a hub."""

from __future__ import annotations

import argparse

from chairlift.core.errors import InvalidOption


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "pull",
        help="get a model from a hub, or its newest version",
        description="Get a model from the Hugging Face hub (or the one that HF_ENDPOINT names) into the cache that all "
        "programs share (HF_HUB_CACHE): safetensors, JSON and tokenizer, never code or pickles. A download that was "
        "cut off goes on where it stopped. HF_TOKEN opens what is private or gated.",
    )
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME[@REVISION][:FILE]",
        help="org/name; of a repository of GGUF files one by its kind or a pattern, as in org/name:Q4_K_M",
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Get one after the other; prints how each is served."""
    from chairlift.models.fetch import named_on_hub, pull
    from chairlift.worker.loading import getting

    wanted = []
    for text in arguments.names:
        name = named_on_hub(text, None)
        if name is None:
            raise InvalidOption(f"{text} is no name on a hub, such as org/name, or lies here already")
        wanted.append(name)
    for name in wanted:
        pinned = pull(name, getting)
        print(f"{name} is there (commit {pinned.revision[:12]}): chairlift serve {name}", flush=True)
    return 0
