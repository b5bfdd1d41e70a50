"""Columns that a source or sink declares, compared with those of the table, file or topic."""
