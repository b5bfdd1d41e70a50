-- The price of each auction's winning bid, when the auction has expired. spark_state/q4.py averages them.
SELECT a.category AS id, max(b.price) AS price
FROM closing_auction AS a
JOIN timed_bid AS b ON a.id = b.auction AND b.`dateTime` BETWEEN a.`dateTime` AND a.closes
GROUP BY a.id, a.category, a.closes;
