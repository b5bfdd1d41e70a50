"""The scoreboard: faults of every kind, injected by seed, and how often something was lost, doubled or not noticed.

`python -m tests.scoreboard` plays the rows and writes ``docs/scoreboard.md``; see `row` for what a row is.
"""
