"""The command line with the planted bug that the environment names."""

from __future__ import annotations

from stateflow.cli.main import main
from tests.support.mutants import plant_from_environment

if __name__ == "__main__":
    plant_from_environment()
    main()
