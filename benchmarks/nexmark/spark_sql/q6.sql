-- Each auction when it opens, and its winning bid when the auction has expired. spark_state/q6.py averages these bids.
SELECT seller, closes, array(unix_millis(closes), unix_millis(CAST(`dateTime` AS TIMESTAMP))) AS opened, NULL AS won
FROM closing_auction
UNION ALL
SELECT seller, closes, NULL AS opened, array(winning.at, id, winning.price) AS won
FROM (
    SELECT a.seller, a.id, a.closes,
           max_by(
               struct(b.price, unix_millis(b.`dateTime`) AS at), struct(b.price, -unix_millis(b.`dateTime`))
           ) AS winning
    FROM closing_auction AS a
    JOIN timed_bid AS b ON a.id = b.auction AND b.`dateTime` BETWEEN a.`dateTime` AND a.closes
    GROUP BY a.seller, a.id, a.closes
);
