"""Write what `pip install .` takes today, version by version with its digest, for the container and offline installs.

    python deploy/lock.py > deploy/requirements-linux-x86_64-cp311.txt

Digests are of the files that this interpreter and machine take: one list for each kind of both.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run([*command, str(ROOT)], capture_output=True, text=True, check=True)
    kind = f"{sys.implementation.name} {platform.python_version_tuple()[0]}.{platform.python_version_tuple()[1]}"
    print(f"# By deploy/lock.py, for {kind} on {platform.system()} {platform.machine()}.")
    found = []
    for item in json.loads(done.stdout)["install"]:
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        if name != "chairlift":
            digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
            found.append(f"{name.lower()}=={version} --hash=sha256:{digest}")
    print("\n".join(sorted(found)))


if __name__ == "__main__":
    main()
