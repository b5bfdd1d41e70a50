-- Bids with a number of their channel, which is known or part of the URL.
SELECT auction, bidder, price, channel,
       CASE LOWER(channel)
           WHEN 'apple' THEN '0'
           WHEN 'google' THEN '1'
           WHEN 'facebook' THEN '2'
           WHEN 'baidu' THEN '3'
           ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)
       END AS channel_id
FROM bid
WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL
    OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu');
