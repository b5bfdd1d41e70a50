"""Patterns of rows (Flink CEP).

- `pattern`, `conditions`, `skip`: how a job declares a pattern.
- `functions`: what users implement for matches.
- `automaton`: the states and transitions of a pattern.

- `pattern_operator`: the keyed function, the rows of a key against the automaton, and the stored partial matches.
"""
