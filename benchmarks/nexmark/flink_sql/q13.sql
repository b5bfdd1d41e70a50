-- Every bid with a value of a table that does not change.
SELECT b.auction, b.bidder, b.price, b.`dateTime`, s.`value`
FROM bid AS b
CROSS JOIN LATERAL TABLE(side_input(MOD(b.auction, 10000))) AS s(`value`);
