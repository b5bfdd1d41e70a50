-- The highest bids of each ten seconds.
SELECT b.auction, b.price, b.bidder, b.`dateTime`, b.extra
FROM timed_bid AS b
JOIN (
    SELECT max(price) AS most, window.end AS ended
    FROM timed_bid
    GROUP BY window(`dateTime`, '10 seconds')
) AS highest
ON b.price = highest.most
WHERE b.`dateTime` BETWEEN highest.ended - INTERVAL '10' SECOND AND highest.ended;
