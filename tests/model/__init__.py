"""A deterministic simulator of the protocol: the real log, claim, commit, collection and publishing code over a
simulated storage and simulated sinks, with faults. See README.md."""
