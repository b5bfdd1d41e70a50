-- The bids of each bidder in each ten seconds of processing time.
CREATE VIEW arriving AS
SELECT *, PROCTIME() AS arrival
FROM bid;

SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM TABLE(TUMBLE(TABLE arriving, DESCRIPTOR(arrival), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end;
