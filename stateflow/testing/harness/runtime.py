"""What a harness runs its batches with: an executor, a storage for the state, and sinks."""

from __future__ import annotations

from stateflow.runtime.executor import Executor
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.storage import unregister_memory
from stateflow.testing.harness.rows import CollectedRows


class HarnessRuntime:
    """Runs batches in this process, and keeps the state in memory. A subclass may run them elsewhere."""

    def executor(self, arrow_rows: int | None) -> Executor:
        """Returns the executor of a harness, which takes row objects by uid of the source.

        Args:
            arrow_rows: maximum number of rows of an Arrow batch; None for all rows.
        """
        return LocalExecutor(arrow_rows)

    def root(self, name: str) -> str:
        """Returns the URI of the storage for the state of a harness.

        Args:
            name: unique among all harnesses.
        """
        return f"memory://{name}"

    def sink(self) -> CollectedRows:
        """Returns a sink that has the rows of a batch in this process once the batch has succeeded."""
        return CollectedRows()

    def release(self, root: str) -> None:
        """Deletes the storage of a closed harness."""
        unregister_memory(root)
