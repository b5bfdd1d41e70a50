-- A bidder's prices for an auction that fall, and then rise for the first time.
SELECT auction, bidder, start_tstamp, bottom_tstamp, end_tstamp
FROM bid MATCH_RECOGNIZE (
    PARTITION BY auction, bidder
    ORDER BY `dateTime`
    MEASURES
        FIRST_ROW.`dateTime` AS start_tstamp,
        LAST(DOWN.`dateTime`) AS bottom_tstamp,
        LAST(UP.`dateTime`) AS end_tstamp
    ONE ROW PER MATCH
    AFTER MATCH SKIP TO LAST UP
    PATTERN (FIRST_ROW DOWN+ UP)
    DEFINE
        DOWN AS (LAST(DOWN.price, 1) IS NULL AND DOWN.price < FIRST_ROW.price)
            OR DOWN.price < LAST(DOWN.price, 1),
        UP AS UP.price > LAST(DOWN.price, 1)
);
