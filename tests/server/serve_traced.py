"""As `serve_fake.py`, with traces as `chairlift serve` sends them."""

from __future__ import annotations

import sys

from chairlift.server.otel import open_traces
from server.serve_fake import main

if __name__ == "__main__":
    sys.exit(main(open_traces=open_traces))
