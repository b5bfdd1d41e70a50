-- Prices of a bidder for an auction that drop by more than 50 within five seconds.
SELECT auction, bidder, drop_time, drop_diff
FROM bid MATCH_RECOGNIZE (
    PARTITION BY auction, bidder
    ORDER BY `dateTime`
    MEASURES
        LOW.`dateTime` AS drop_time,
        HIGH.price - LOW.price AS drop_diff
    ONE ROW PER MATCH
    AFTER MATCH SKIP PAST LAST ROW
    PATTERN (HIGH BETWEEN_ROW* LOW) WITHIN INTERVAL '5' SECOND
    DEFINE
        BETWEEN_ROW AS BETWEEN_ROW.price > HIGH.price - 50,
        LOW AS LOW.price < HIGH.price - 50
);
