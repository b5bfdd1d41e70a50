"""Parts of ``make demo``; scripts/demo.py runs them."""
