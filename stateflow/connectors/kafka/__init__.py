"""Kafka topics as sources and sinks.

- `source`: `KafkaSource`, which reads through Spark's own Kafka source.
- `sink`: `KafkaSink`, its handle of a topic, and its transactions, which fence older drivers.
- `client`: how Spark and the driver connect; partitions and offsets.
- `formats`: records as rows, with the reason why one is rejected, rows as records, and formats of values. `source` ends
  the run for a rejected record, or `runtime.spark.frames` makes it a dead letter.
- `avro`: `AvroFormat`, its schemas, parsed with limits, and `SchemaRegistry`.
"""
