-- Every bid, with its price in another currency.
SELECT auction, bidder, 0.908 * price AS price, `dateTime`, extra
FROM bid;
