"""What single fields of a body may hold, whatever the body asks for: the numbers, and the types that tell of them.

A type here tells the OpenAPI document what is checked elsewhere (`validate.py`, `fields.py` and others, which also see
bodies that were made from those of another API); `tests/server/test_bounds.py` holds the two together at every bound.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from chairlift.core.types import MAX_LOGPROBS
from chairlift.server.fields import MAX_INT
from chairlift.server.identity import MAX_TENANT_CHARS

MAX_CHOICES = 128
"""Most answers one request may ask for: `n` times the number of prompts."""
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_TOKEN_LIST = 4096
"""Most entries of `stop_token_ids` and `logit_bias`."""
MAX_SALT_CHARS = 256
MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_CHARS = 512
MAX_STREAM_INTERVAL = 1024
MAX_TOOLS = 128
FUNCTION_NAME = "[A-Za-z0-9_.:-]{1,128}"

SERVICE_TIERS = {"auto": "default", "default": "default", "priority": "default", "scale": "default", "flex": "flex"}
"""The ways of being served that clients ask for, and how they are: nobody is before others for the asking."""
ROLES = ("system", "developer", "user", "assistant", "tool")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")

REQUIRED = "x-required"
"""Marks a field that has to be given and may not be null, though the type that it is read into has null for it."""


def tells(about: str | None = None, *, required: bool = False, **schema: Any) -> Meta:
    """What the document is to say of a type, in the keywords of JSON Schema; nothing is checked by it."""
    return Meta(description=about, extra_json_schema=schema | ({REQUIRED: True} if required else {}))


TokenId = Annotated[int, tells(minimum=0)]
NumChoices = Annotated[int, tells(minimum=1, maximum=MAX_CHOICES)]
NumLogprobs = Annotated[int, tells(minimum=0, maximum=MAX_LOGPROBS)]
NumTokens = Annotated[int, tells("At most as many as the context has room for.", minimum=1)]
NumTokensOrNone = Annotated[int, tells("At most as many as the context has room for; 0 only with `echo`.", minimum=0)]
MinTokens = Annotated[int, tells("Before them the answer does not end by itself.", minimum=0, maximum=MAX_INT)]
Temperature = Annotated[float, tells(minimum=0, maximum=100)]
TopP = Annotated[float, tells(exclusiveMinimum=0, maximum=1)]
TopK = Annotated[int, tells("0 and -1 are all.", minimum=-1, maximum=MAX_INT)]
MinP = Annotated[float, tells(minimum=0, maximum=1)]
Seed = Annotated[int, tells(minimum=-(2**63), maximum=2**64 - 1)]
RepetitionPenalty = Annotated[float, tells(minimum=0.01, maximum=100)]
Penalty = Annotated[float, tells(minimum=-2, maximum=2)]
LogitBias = Annotated[
    dict[Annotated[str, tells(pattern="^(0|[1-9][0-9]{0,9})$")], Annotated[float, tells(minimum=-100, maximum=100)]],
    tells("By token id.", maxProperties=MAX_TOKEN_LIST),
]
AllowedTokens = Annotated[list[TokenId], tells("No others are sampled.", minItems=1)]
StopTokens = Annotated[list[TokenId], tells(maxItems=MAX_TOKEN_LIST)]
StopText = Annotated[str, tells(minLength=1, maxLength=MAX_STOP_CHARS)]
Stops = Annotated[StopText | Annotated[list[StopText], tells(maxItems=MAX_STOPS)], tells("Texts that end the answer.")]
StreamInterval = Annotated[
    int, tells("Tokens per event, from the second event on.", minimum=1, maximum=MAX_STREAM_INTERVAL)
]
ServiceTier = Annotated[str, tells("`flex` waits behind all that say nothing.", enum=list(SERVICE_TIERS))]
Metadata = Annotated[
    dict[Annotated[str, tells(maxLength=MAX_METADATA_KEY_CHARS)], Annotated[str, tells(maxLength=MAX_METADATA_CHARS)]],
    tells("Has no effect.", maxProperties=MAX_METADATA),
]
Priority = Annotated[int, tells("Lower goes first.", minimum=-MAX_INT, maximum=MAX_INT)]
CacheSalt = Annotated[str, tells("Divides the prefix cache further.", minLength=1, maxLength=MAX_SALT_CHARS)]
UserName = Annotated[str, tells("A part of the caller's own traffic, for fair shares.", maxLength=MAX_TENANT_CHARS)]
DeadlineMs = Annotated[float, tells("From arrival; one that is missed is a 504.", exclusiveMinimum=0)]
Truncation = Annotated[
    int,
    tells(
        "Keep only so many tokens of the prompt; -1: as many as fit.",
        minimum=-1,
        maximum=MAX_INT,
        **{"not": {"const": 0}},
    ),
]
RequestId = Annotated[str, tells("Part of the response's id, in place of `X-Request-Id`, under the same rules.")]
FunctionName = Annotated[str, tells(pattern=f"^{FUNCTION_NAME}$")]
