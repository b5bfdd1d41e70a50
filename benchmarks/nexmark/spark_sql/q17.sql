-- Bids and prices of each auction and day.
SELECT auction, date_format(`dateTime`, 'yyyy-MM-dd') AS `day`,
       count(*) AS total_bids,
       count_if(price < 10000) AS rank1_bids,
       count_if(price >= 10000 AND price < 1000000) AS rank2_bids,
       count_if(price >= 1000000) AS rank3_bids,
       min(price) AS min_price, max(price) AS max_price, sum(price) DIV count(*) AS avg_price, sum(price) AS sum_price
FROM bid
GROUP BY auction, date_format(`dateTime`, 'yyyy-MM-dd');
