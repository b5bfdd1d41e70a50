"""The job of ``small_flights.py`` whose legs are records of a Kafka topic, and whose routes are rows in PostgreSQL.

Parameters: as there, ``job.brokers``, and ``job.postgres``, how to connect.
"""

from stateflow import FileSource, StreamExecutionEnvironment
from stateflow.connectors.kafka.sink import KafkaSink
from stateflow.connectors.postgres.sink import PostgresSink
from tests.support.jobs.small_flights import Aircraft, Flight, Leg, Route, Routes, name_unknown


def build(env: StreamExecutionEnvironment) -> None:
    env.configure(max_parallelism=128, source__max_files_per_batch=1)
    source = FileSource(f"{env.parameter('folder')}/flights", schema=Flight)
    flights = env.from_source(source, uid="flights").transform(name_unknown)
    legs = flights.key_by("aircraft", order_by=("number",)).process(Aircraft(), output=Leg, uid="aircraft")
    legs.sink_to(KafkaSink(env.parameter("brokers"), topic="legs", key="aircraft"), uid="legs")
    routes = flights.key_by("carrier", "origin", order_by=("number",)).process(Routes(), output=Route, uid="by-route")
    routes.sink_to(PostgresSink(env.parameter("postgres"), "public.routes"), uid="routes")
