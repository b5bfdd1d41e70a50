"""Kafka topics as sources and sinks.

- `source`: `KafkaSource`, which reads through Spark's own Kafka source.
- `sink`: `KafkaSink`, its handle of a topic, and its transactions, which fence older drivers.
- `client`: how Spark and the driver connect; partitions and offsets.
- `formats`: records as rows, rows as records, and formats of values.
- `avro`: `AvroFormat`, its schemas, parsed with limits, and `SchemaRegistry`.
"""
