"""The Spark session of a run.

session: starts Spark's Java process with its settings and log
requirements: settings, masters and versions that a run accepts; does not need Spark
worker_daemon: a folder on the Python path of Spark's daemon
"""
