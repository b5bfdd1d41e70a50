"""Operators; import them from their modules, or from here."""
