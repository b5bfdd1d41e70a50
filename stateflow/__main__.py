"""``python -m stateflow``, and the application that spark-submit is given."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # spark-submit puts this file's folder first on the path, where our modules would shadow others by their bare names.
    here = str(Path(__file__).parent)
    sys.path[:] = [p for p in sys.path if p != here]
    from stateflow.cli import main

    main()
