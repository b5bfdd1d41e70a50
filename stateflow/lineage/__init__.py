"""Lineage: what a run reads and writes, as OpenLineage events.

- `reporter`: follows the runs of a launch, makes an event at each start, end, and checkpoint, and sends it in a thread.
- `events`: the data of an event, and which columns of sinks come from which columns of sources.
- `openlineage`: the event of OpenLineage's client, with the facets of stateflow.

Nothing here may fail or delay a run.
"""
