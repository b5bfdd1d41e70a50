"""What a savepoint that is written keeps of an existing one, and what it changes of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from stateflow.bootstrap.layout import Target
from stateflow.bootstrap.transforms import ChangedOperator, StateTransformation
from stateflow.checkpoint.log.documents import Manifest, OperatorState, SavepointFormat
from stateflow.checkpoint.savepoints.canonical.workers import LocalWorkers
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint
from stateflow.checkpoint.savepoints.create import ManifestCopy, ManifestFiles
from stateflow.clock import Clock
from stateflow.config.settings import SavepointSettings
from stateflow.errors import ConfigError
from stateflow.query.snapshot import savepoint_snapshot
from stateflow.similar_names import did_you_mean


@dataclass
class Existing:
    """An existing savepoint, and the changes of it.

    Attributes:
        stored: the savepoint.
        removed: uids of operators that are not kept.
        changes: by uid of the operator.
    """

    stored: StoredSavepoint
    removed: set[str] = field(default_factory=set)
    changes: dict[str, tuple[StateTransformation, ...]] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the savepoint."""
        return self.stored.document.manifest

    @property
    def kept(self) -> dict[str, OperatorState]:
        """The operators that are not removed, by uid."""
        return {operator.uid: operator for operator in self.manifest.operators if operator.uid not in self.removed}

    def operator(self, uid: str) -> OperatorState:
        """Returns an operator that is kept. Raises ConfigError if there is none."""
        found = self.kept
        if uid not in found:
            raise ConfigError(
                "the savepoint has no such operator", hint=did_you_mean(uid, found), uid=uid, found=sorted(found)
            )
        return found[uid]

    def remove(self, uid: str) -> None:
        """Removes an operator. Raises ConfigError if it is not kept."""
        self.removed.add(self.operator(uid).uid)
        self.changes.pop(uid, None)

    def add_change(self, uid: str, change: StateTransformation) -> None:
        """Adds new rows of a state. Raises ConfigError if the state does not exist, or has some already."""
        change.check(self.operator(uid))
        before = self.changes.get(uid, ())
        if any((each.name, each.is_of_operator) == (change.name, change.is_of_operator) for each in before):
            raise ConfigError("a state is transformed twice", hint="compose the functions", uid=uid, state=change.name)
        self.changes[uid] = (*before, change)

    def written(self, target: Target, at: int, clock: Clock) -> Manifest:
        """Writes everything that is kept, transformed where it is to be; returns its manifest.

        Args:
            target: where it is written.
            at: the time of the writer, in milliseconds since 1970.
            clock: the clock of the readers.

        Raises:
            MissingFile, CorruptFile: a file of the savepoint is missing or damaged.
            StateflowError: a row of a transformation cannot be stored.
        """
        self.stored.verify()
        opened = savepoint_snapshot(self.stored)
        operators = [operator for operator in opened.manifest.operators if operator.uid not in self.removed]
        changed = {
            o.uid: ChangedOperator(opened, o, self.changes[o.uid], clock) for o in operators if o.uid in self.changes
        }
        kept = [changed[o.uid].kept if o.uid in changed else o for o in operators]
        source = ManifestFiles(opened.storage, replace(opened.manifest, operators=kept), opened.max_parallelism)
        copy = ManifestCopy(source, target.storage, target.folder)
        if self.stored.document.format is SavepointFormat.CANONICAL:
            manifest = copy.native(0)
        else:
            manifest = copy.canonical(SavepointSettings(), LocalWorkers())
        written = [changed[o.uid].written(o, target, at) if o.uid in changed else o for o in manifest.operators]
        return replace(manifest, operators=written, record=None, history=[])
