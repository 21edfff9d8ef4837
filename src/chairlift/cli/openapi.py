"""`chairlift openapi`: the document of a server's API, for those who make clients from it."""

from __future__ import annotations

import argparse
import json


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "openapi",
        help="print the OpenAPI document of a server",
        description="Print the OpenAPI 3.1 document of a server with API keys and an owner, as JSON. It takes no "
        "model; a running server has its own at /openapi.json.",
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the document of an app that serves nothing."""
    from chairlift.core.admission import AdmissionLimits
    from chairlift.server.access import Access
    from chairlift.server.admin import Admin
    from chairlift.server.app import App
    from chairlift.server.explanations import Explanations
    from chairlift.server.ui.watching import Watching

    explanations = Explanations(1)
    app = App(
        Access(("key",), "127.0.0.1", ()),
        lambda: 0.0,
        stall_timeout_s=1.0,
        log_requests=False,
        admin=Admin(explanations, AdmissionLimits()),
        watching=Watching(explanations, lambda: 0.0),
    )
    print(json.dumps(app.document(), indent=2, ensure_ascii=False))
    return 0
