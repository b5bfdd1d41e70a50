-- A bidder's longest runs of bids for an auction with an average price below 10,000, one from each bid on.
SELECT auction, bidder, start_tstamp, end_tstamp, avg_price
FROM bid MATCH_RECOGNIZE (
    PARTITION BY auction, bidder
    ORDER BY `dateTime`
    MEASURES
        FIRST(LOW.`dateTime`) AS start_tstamp,
        LAST(LOW.`dateTime`) AS end_tstamp,
        AVG(LOW.price) AS avg_price
    ONE ROW PER MATCH
    AFTER MATCH SKIP TO NEXT ROW
    PATTERN (LOW+ NEXT_ROW)
    DEFINE
        LOW AS AVG(LOW.price) < 10000
);
