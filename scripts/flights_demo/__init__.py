"""The parts of ``make demo``; scripts/demo.py tells them in order."""
