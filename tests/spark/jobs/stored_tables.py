"""A job whose inputs, look-ups and sinks are all at one address: Delta tables and files in a bucket."""

from datetime import timedelta

import msgspec

from stateflow import (
    Context,
    DeltaSink,
    DeltaSource,
    FileSink,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
)


class Sale(msgspec.Struct):
    item: str
    number: int


class Price(msgspec.Struct):
    item: str
    price: int
    deleted: bool


class Kind(msgspec.Struct):
    item: str
    kind: str


class KindOfSale(Sale):
    kind: str | None


class Priced(KindOfSale):
    price: int | None


class AddPrice(KeyedBroadcastProcessFunction[KindOfSale, Price, Priced]):
    prices = MapStateDescriptor("prices", str, int)

    def process_broadcast_element(self, row: Price, ctx: Context) -> None:
        prices = ctx.get_broadcast_state(self.prices)
        if row.deleted:
            prices.remove(row.item)
        else:
            prices.put(row.item, row.price)

    def process_element(self, row: KindOfSale, ctx: Context) -> list[Priced]:
        price = ctx.get_broadcast_state(self.prices).get(row.item)
        return [Priced(row.item, row.number, row.kind, price)]


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job: sales get their item's kind by a look-up, and its price by broadcast state."""
    bucket = env.parameter("bucket")
    sales = env.from_source(DeltaSource(f"{bucket}/sales", schema=Sale), uid="sales")
    kinds = DeltaSource(f"{bucket}/kinds", schema=Kind)
    with_kinds = sales.lookup_join(kinds, on="item", output=KindOfSale)
    prices = env.from_table(f"{bucket}/prices", schema=Price, refresh=timedelta(minutes=5), uid="prices")
    priced = with_kinds.key_by("item").connect(prices).process(AddPrice(), output=Priced, uid="priced")
    priced.sink_to(DeltaSink(f"{bucket}/priced"), uid="table")
    priced.sink_to(FileSink(f"{bucket}/files", format="json"), uid="files")
