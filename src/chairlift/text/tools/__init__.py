"""Functions that a model calls: the ways in which models write calls, and reading them while they are written."""

from __future__ import annotations

from chairlift.text.tools.found import CallSpelling, ToolFormat, ToolReader
from chairlift.text.tools.generic import GENERIC
from chairlift.text.tools.harmony import HARMONY_CALLS
from chairlift.text.tools.hermes import HERMES
from chairlift.text.tools.llama3 import LLAMA3
from chairlift.text.tools.mistral import MISTRAL

TOOL_FORMATS = {form.name: form for form in (HERMES, LLAMA3, MISTRAL, HARMONY_CALLS, GENERIC)}
"""By the names that users of other servers know."""

__all__ = ["GENERIC", "TOOL_FORMATS", "CallSpelling", "ToolFormat", "ToolReader"]
