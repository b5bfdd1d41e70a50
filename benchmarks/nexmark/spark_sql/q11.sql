-- The bids of each bidder in each session, which a pause of ten seconds ends.
SELECT bidder, count(*) AS bid_count, session_window.start AS starttime, session_window.end AS endtime
FROM timed_bid
GROUP BY bidder, session_window(`dateTime`, '10 seconds');
