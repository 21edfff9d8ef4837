"""What the packaged models answer by the oracle, stored in `answers.json`; some minutes for the larger one.

    PYTHONPATH=tests python tests/executors/make_answers.py [MODEL...]

With names, only those are computed, and the others stay as they are.
"""

from __future__ import annotations

import json
import sys

from executors.answers import MODELS, STORED, exact_answers


def main() -> None:
    answers = json.loads(STORED.read_text()) if STORED.exists() else {}
    for name in sys.argv[1:] or MODELS:
        answers[name] = exact_answers(name)
        print(name, min(min(answer["margins"]) for answer in answers[name]))
    STORED.write_text(json.dumps(answers, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
