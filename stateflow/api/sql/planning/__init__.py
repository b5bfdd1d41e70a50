"""From parsed statements to plans."""
