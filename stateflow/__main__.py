"""Entry point of ``python -m stateflow``, and the application that is passed to spark-submit."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # spark-submit puts this file's folder first on sys.path, where modules such as config would shadow others.
    here = str(Path(__file__).parent)
    sys.path[:] = [p for p in sys.path if p != here]
    from stateflow.cli.main import main

    main()
