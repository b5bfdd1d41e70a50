-- The last bid of each bidder for each auction.
SELECT auction, bidder, price, channel, url, `dateTime`, extra
FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS position_of_bid
    FROM bid
)
WHERE position_of_bid <= 1;
