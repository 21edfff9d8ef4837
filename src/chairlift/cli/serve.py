"""`chairlift serve`: an OpenAI-compatible server."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from chairlift.cli.admission_flags import add_admission_flags, caps
from chairlift.cli.batch_flags import add_batch_flags, batch_options
from chairlift.cli.chat_flags import add_chat_flags, add_template_flag
from chairlift.cli.options import add_config_flag, add_engine_flags, engine_options
from chairlift.cli.web_flags import add_web_flags, web_options
from chairlift.core.errors import InvalidOption

if TYPE_CHECKING:
    from chairlift.server.ports import ServedText
    from chairlift.server.traced import Traces


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model over HTTP, compatible with the OpenAI API. Flags may also come from --config, or "
        "from variables such as CHAIRLIFT_MAX_NUM_SEQS.",
    )
    add_engine_flags(parser, positional_model=True)
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    group.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    _add_key_flags(group)
    group.add_argument(
        "--keep-explanations",
        type=int,
        default=1000,
        metavar="N",
        help="how many of the last answers are explained under /admin/requests (default: %(default)s)",
    )
    group.add_argument(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="names that requests may use; the first is in responses (default: the model's own)",
    )
    add_template_flag(group)
    add_chat_flags(group)
    group.add_argument(
        "--allowed-host",
        action="append",
        metavar="NAME",
        help="further host name under which a server without keys may be addressed; may be repeated",
    )
    _add_life_flags(group)
    _add_log_flags(group)
    add_web_flags(parser)
    add_batch_flags(parser)
    add_admission_flags(parser)
    add_config_flag(parser)
    parser.set_defaults(run=run, parser=parser)


def _add_key_flags(group: argparse._ArgumentGroup) -> None:
    """Who may ask for what."""
    group.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help="key that clients must send; may be repeated; needed to listen on other addresses than this machine's own "
        "(better given as CHAIRLIFT_API_KEY: a command line can be read by others)",
    )
    group.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="YAML or JSON list of keys (or their SHA-256), each with the name, weight, limits and routes of who has "
        "it; read again on SIGHUP",
    )
    group.add_argument(
        "--metrics-api-key",
        action="append",
        metavar="KEY",
        help="key that opens /metrics and nothing else, which API keys then do not; may be repeated (better given as "
        "CHAIRLIFT_METRICS_API_KEY)",
    )
    group.add_argument(
        "--admin-api-key",
        action="append",
        metavar="KEY",
        help="key that opens the routes under /admin and nothing else; may be repeated; without one there are no such "
        "routes (better given as CHAIRLIFT_ADMIN_API_KEY)",
    )


def _add_life_flags(group: argparse._ArgumentGroup) -> None:
    """How the server ends, and what it does about an engine that did."""
    group.add_argument(
        "--shutdown-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long a stopped server lets answers go on (default: %(default)s)",
    )
    group.add_argument(
        "--engine-stall-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="an engine that says nothing for so long hangs and is replaced (default: %(default)s)",
    )
    group.add_argument(
        "--max-engine-restarts",
        type=int,
        default=5,
        metavar="N",
        help="how often in ten minutes an engine that was lost is replaced; then the server ends with status 1, "
        "and with 0 at once (default: %(default)s)",
    )


def _add_log_flags(group: argparse._ArgumentGroup) -> None:
    """What is written down of requests."""
    group.add_argument(
        "--enable-log-requests",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="one line for each request on standard error, without its content (default: on)",
    )
    group.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="of the log on standard error; json: one object for each line (default: %(default)s)",
    )
    group.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="what is logged: this and what is worse; debug also tells what exceptions say, which may quote requests "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--usage-log",
        metavar="FILE",
        help="append a JSON line for each request: who asked, tokens, times, and nothing of what was said",
    )
    group.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="OpenTelemetry collector that gets a trace of each request over HTTP, without its content, such as "
        "http://127.0.0.1:4318/v1/traces; needs chairlift[otel] (default: none)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from chairlift.core.admission import AdmissionLimits
    from chairlift.server.api_keys import read_api_keys
    from chairlift.server.options import ServerOptions
    from chairlift.server.run import serve
    from chairlift.server.served_text import load_served_text
    from chairlift.worker.fetch import with_models_here
    from chairlift.worker.options import worker_command

    engine = engine_options(arguments)
    if arguments.api_key_file is not None:
        weights = read_api_keys(arguments.api_key_file).weights
        if weights and engine.scheduling_policy != "fair":
            raise InvalidOption(f"{arguments.api_key_file}: a weight goes with --scheduling-policy fair")
        engine = replace(engine, tenant_weights={**engine.tenant_weights, **weights})
    server = ServerOptions(
        host=arguments.host,
        port=arguments.port,
        api_keys=tuple(arguments.api_key or ()),
        api_key_file=arguments.api_key_file,
        admin_api_keys=tuple(arguments.admin_api_key or ()),
        metrics_api_keys=tuple(arguments.metrics_api_key or ()),
        keep_explanations=arguments.keep_explanations,
        served_model_names=tuple(arguments.served_model_name or ()),
        allowed_hosts=tuple(arguments.allowed_host or ()),
        shutdown_timeout_s=arguments.shutdown_timeout,
        stall_timeout_s=arguments.engine_stall_timeout,
        max_engine_restarts=arguments.max_engine_restarts,
        log_requests=arguments.enable_log_requests,
        log_format=arguments.log_format,
        log_level=arguments.log_level,
        usage_log=arguments.usage_log,
        otlp_traces_endpoint=arguments.otlp_traces_endpoint,
        **web_options(arguments),
        **batch_options(arguments),
        admission=AdmissionLimits(**caps(arguments)),
        enable_per_request_metrics=arguments.enable_per_request_metrics,
        overload_status=arguments.overload_status,
        scheduling_policy=engine.scheduling_policy,
    )

    def load_text(model: str) -> ServedText:
        return load_served_text(
            model,
            arguments.chat_template,
            tool_call_parser=arguments.tool_call_parser,
            auto_tool_choice=arguments.enable_auto_tool_choice,
            reasoning_parser=arguments.reasoning_parser,
            template_kwargs=arguments.default_chat_template_kwargs,
        )

    engine = with_models_here(engine)
    open_traces = None if server.otlp_traces_endpoint is None else _traces()
    return serve(
        server,
        engine.model,
        lambda fd: worker_command(engine, fd),
        load_text,
        engine.embedding_model,
        open_traces,
    )


def _traces() -> Callable[[str], Traces]:
    """What opens the way to a collector.

    Raises:
        InvalidOption: what that takes is not installed.
    """
    try:
        from chairlift.server.otel import open_traces
    except ImportError as error:
        raise InvalidOption(f"--otlp-traces-endpoint needs pip install 'chairlift[otel]' ({error})") from error
    return open_traces
