-- Bids of some prices, with the part of the day, and how often the letter c is in them.
SELECT auction, bidder, 0.908 * price AS price,
       CASE
           WHEN HOUR(`dateTime`) BETWEEN 8 AND 18 THEN 'dayTime'
           WHEN HOUR(`dateTime`) <= 6 OR HOUR(`dateTime`) >= 20 THEN 'nightTime'
           ELSE 'otherTime'
       END AS bidTimeType,
       `dateTime`, extra,
       count_character(extra, 'c') AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;
