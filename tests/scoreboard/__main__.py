"""``python -m tests.scoreboard``."""

import sys

from tests.scoreboard.command import main

# Its processes begin by importing this module anew.
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
