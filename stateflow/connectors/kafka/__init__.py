"""Reads Kafka topics through Spark's own Kafka source."""
