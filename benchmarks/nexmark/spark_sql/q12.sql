-- The bids of each bidder in each ten seconds of processing time, which is the time of a micro-batch.
SELECT bidder, count(*) AS bid_count, window.start AS starttime, window.end AS endtime
FROM bid WATERMARK current_timestamp() AS arrival DELAY OF INTERVAL 1 SECOND
GROUP BY bidder, window(arrival, '10 seconds');
