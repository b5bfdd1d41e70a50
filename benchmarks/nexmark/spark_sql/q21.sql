-- Bids with a number of their channel, which is known or part of the URL.
SELECT auction, bidder, price, channel,
       CASE lower(channel)
           WHEN 'apple' THEN '0'
           WHEN 'google' THEN '1'
           WHEN 'facebook' THEN '2'
           WHEN 'baidu' THEN '3'
           ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)
       END AS channel_id
FROM bid
WHERE lower(channel) IN ('apple', 'google', 'facebook', 'baidu')
    OR contains(url, '&channel_id=') OR startswith(url, 'channel_id=');
