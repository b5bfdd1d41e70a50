"""The Spark session of a run: its Java process, settings, versions and log."""
