"""Planted bugs: plausible mistakes in the product's code, each with the tests that must fail when it is made.

``make bugs`` plants each one in a copy of the repository and runs only its tests; a bug that they do not find is a
promise without a test. `bugs.txt` has the bugs by file; those of `tests.support.mutants` are found by the simulator and
by the scoreboard instead.
"""
