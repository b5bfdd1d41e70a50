"""Sales with the prices of their items, which a Delta table has."""

import msgspec

from stateflow import Context, KeyedBroadcastProcessFunction, MapStateDescriptor


class Price(msgspec.Struct):
    item: str
    price: int
    deleted: bool


class Sale(msgspec.Struct):
    item: str
    number: int


class Priced(msgspec.Struct):
    number: int
    price: int | None


class WithPrice(KeyedBroadcastProcessFunction[Sale, Price, Priced]):
    prices = MapStateDescriptor("prices", str, int)

    def process_broadcast_element(self, row: Price, ctx: Context) -> None:
        state = ctx.get_broadcast_state(self.prices)
        if row.deleted:
            state.remove(row.item)
        else:
            state.put(row.item, row.price)

    def process_element(self, row: Sale, ctx: Context) -> list[Priced]:
        return [Priced(row.number, ctx.get_broadcast_state(self.prices).get(row.item))]
