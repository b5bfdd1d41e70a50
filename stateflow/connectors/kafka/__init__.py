"""Kafka topics as sources and sinks.

- `source`: `KafkaSource`, which reads through Spark's own Kafka source.
- `sink`: `KafkaSink`, and its handle of a topic.
- `client`: how Spark and the driver connect, partitions and offsets, and transactions that fence older drivers.
- `formats`: records as rows, rows as records, and formats of values.
- `avro`: `AvroFormat`, its schemas, parsed with limits, and `SchemaRegistry`.
"""
