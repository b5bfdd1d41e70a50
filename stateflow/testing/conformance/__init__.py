"""Test suites that storages, state backends and sinks must pass.

- `storage`, `state_backend`, `sink`: the suites
- `sink_table`: a table that the suite of sinks writes and reads
- `sink_drivers`: programs that publish to a sink and are killed
"""
