"""`python -m chairlift.worker`: the engine process, started by the server."""

import sys

from chairlift.worker.process import main

sys.exit(main())
