"""Orders from Kafka: copied to a folder, counted by name, and their dead letters."""

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from stateflow import (
    AvroFormat,
    Context,
    DeadLetters,
    DeltaSink,
    KafkaHeader,
    KafkaSecurity,
    KafkaSource,
    KeyedProcessFunction,
    RuntimeContext,
    SchemaRegistry,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from stateflow.connectors.kafka.source import Start
from stateflow.testing.sinks import FolderSink


class Order(msgspec.Struct, kw_only=True):
    id: int
    name: str
    price: float | None
    topic: str
    partition: int
    offset: int
    sent: Annotated[datetime, msgspec.Meta(tz=True)]
    key: str | None
    headers: list[KafkaHeader]


class Count(msgspec.Struct):
    name: str
    count: int
    last: int
    """The number of the order that was counted last."""


class Counter(KeyedProcessFunction[Order, Count]):
    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, row: Order, ctx: Context) -> tuple[Count]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return (Count(row.name, count, row.id),)


METADATA = {name: name for name in ("topic", "partition", "offset", "key", "headers")} | {"sent": "timestamp"}


def _format(registry: str) -> str | AvroFormat:
    if not registry:
        return "json"
    return AvroFormat(registry=SchemaRegistry(registry, username="me", password=os.environ["REGISTRY_PASSWORD"]))


def _security(env: StreamExecutionEnvironment) -> KafkaSecurity | None:
    """Returns the login of a broker with TLS, whose password is a setting or in the environment."""
    ca_file, key_file = env.parameter("ca_file", ""), env.parameter("key_file", "")
    if not ca_file:
        return None
    password = env.parameter("kafka_password", "") or os.environ["KAFKA_PASSWORD"]
    return KafkaSecurity("SASL_SSL", "PLAIN", "me", password, ca_file=ca_file, key_file=key_file)


def _start(text: str) -> Start:
    if text.startswith("{"):
        return {topic: {int(n): at for n, at in offsets.items()} for topic, offsets in json.loads(text).items()}
    return datetime.fromisoformat(text) if text[0].isdigit() else text


def build(env: StreamExecutionEnvironment) -> None:
    home = Path(env.parameter("home"))
    env.parameter("spark")
    budget = int(env.parameter("budget", "0"))
    source = KafkaSource(
        env.parameter("brokers"),
        schema=Order,
        topics=env.parameter("topics", ""),
        pattern=env.parameter("pattern", ""),
        value=_format(env.parameter("registry", "")),
        metadata=METADATA,
        security=_security(env),
        start=_start(env.parameter("start", "earliest")),
        on_error=DeadLetters(budget) if budget else "fail",
        on_data_loss=env.parameter("on_data_loss", "fail"),  # type: ignore[arg-type]
        options={"minPartitions": env.parameter("splits", "1")},
    )
    orders = letters = env.from_source(source, uid="orders")
    idle_s = env.parameter("idle_s", "")
    if idle_s:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("sent")
        orders = orders.assign_timestamps_and_watermarks(strategy.with_idleness(timedelta(seconds=float(idle_s))))
    orders.sink_to(FolderSink(home / "orders"), uid="orders-out")
    counts = orders.key_by("name").process(Counter(), output=Count, uid="count")
    counts.sink_to(FolderSink(home / "counts"), uid="counts-out")
    counts.sink_to(DeltaSink(home / "newest", mode="upsert", keys="name"), uid="newest-out")
    if budget:
        letters.get_dead_letters().sink_to(FolderSink(home / "letters"), uid="letters-out")
