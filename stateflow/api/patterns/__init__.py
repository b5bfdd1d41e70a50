"""Patterns of rows (Flink CEP).

- `pattern`, `conditions`, `skip`: how a job declares a pattern.
- `functions`: what users implement for matches.
- `pattern_operator`: the automaton of a pattern, the keyed function that runs it, and stored partial matches.
"""
