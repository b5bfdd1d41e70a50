"""Avro as a format of the values of Kafka's records: schemas, their registry, and decoded values."""
