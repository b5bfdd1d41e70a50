"""Settings: their names, types and defaults, and the sources that they come from.

settings: all settings of a run; parses durations and `run.until`
sources: reads settings from TOML files, dictionaries and arguments
submit_options: hides options of spark-submit in a file
"""
