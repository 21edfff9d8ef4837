"""Nothing is sent anywhere and nothing is written when the device's library is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
seen = []
def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "os.mkdir", "subprocess.Popen"):
        seen.append((event, arguments))
sys.addaudithook(hook)
import chairlift.executors.openvino
import openvino
import threading
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(5)
print(seen)
"""


def test_loading_the_device_library_tells_nobody(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"
    assert not list(tmp_path.iterdir())
