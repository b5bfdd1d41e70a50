"""The records of a topic as consumers of committed records see them."""

from __future__ import annotations

from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition


def committed(address: str, topic: str) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"r-{uuid4().hex}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
        found, ended = [], 0
        while ended < 2:
            message = consumer.poll(30)
            assert message is not None
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
        return found
    finally:
        consumer.close()
