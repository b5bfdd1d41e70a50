"""The scoreboard: faults of every kind, injected by seed, and how often something was lost, doubled or not noticed.

`make test` plays a slice; `make scoreboard` plays all rows and writes ``docs/scoreboard.md``.
"""
