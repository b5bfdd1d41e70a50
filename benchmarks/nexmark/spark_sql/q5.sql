-- The auctions with most bids in each ten seconds, every two seconds.
SELECT counted.auction, counted.num
FROM (
    SELECT auction, count(*) AS num, window(`dateTime`, '10 seconds', '2 seconds') AS window
    FROM timed_bid
    GROUP BY auction, window(`dateTime`, '10 seconds', '2 seconds')
) AS counted
JOIN (
    SELECT max(num) AS most, window(ended, '2 seconds') AS window
    FROM (
        SELECT num, window_time(window) AS ended
        FROM (
            SELECT auction, count(*) AS num, window(`dateTime`, '10 seconds', '2 seconds') AS window
            FROM timed_bid
            GROUP BY auction, window(`dateTime`, '10 seconds', '2 seconds')
        )
    )
    GROUP BY window(ended, '2 seconds')
) AS greatest
ON counted.window.end = greatest.window.end AND counted.num >= greatest.most;
