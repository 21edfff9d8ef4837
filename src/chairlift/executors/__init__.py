"""What computes the steps."""

import sys

# OpenVINO reports every import to its makers, over the network, where this package is there; without it, it does not.
# Its own way to refuse is a file in the home folder, for which it is too late in a container.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
