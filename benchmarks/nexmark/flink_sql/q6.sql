-- For each seller, the average winning bid of the last ten closed auctions. Flink refuses it: an OVER aggregate takes
-- no corrections, and the winning bids of the inner query are corrected.
SELECT seller,
       AVG(price) OVER (
           PARTITION BY seller ORDER BY `dateTime` ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
       ) AS avg_price
FROM (
    SELECT seller, price, `dateTime`
    FROM (
        SELECT a.id, a.seller, b.price, b.`dateTime`,
               ROW_NUMBER() OVER (PARTITION BY a.id, a.seller ORDER BY b.price DESC) AS position_of_bid
        FROM auction AS a
        JOIN bid AS b ON a.id = b.auction AND b.`dateTime` BETWEEN a.`dateTime` AND a.expires
    )
    WHERE position_of_bid <= 1
);
