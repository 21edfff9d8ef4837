"""`python -m chairlift`: the `chairlift` command of this interpreter, wherever its script lies."""

import sys

from chairlift.cli.main import main

sys.exit(main())
