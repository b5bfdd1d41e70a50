-- The bids of each bidder in each session, which a pause of ten seconds ends.
SELECT bidder, COUNT(*) AS bid_count,
       SESSION_START(`dateTime`, INTERVAL '10' SECOND) AS starttime,
       SESSION_END(`dateTime`, INTERVAL '10' SECOND) AS endtime
FROM bid
GROUP BY bidder, SESSION(`dateTime`, INTERVAL '10' SECOND);
