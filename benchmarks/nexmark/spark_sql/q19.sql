-- The ten highest bids of each auction.
SELECT auction, highest.bidder, highest.price, highest.channel, highest.url, highest.`dateTime`, highest.extra,
       before + 1 AS rank_number
FROM (
    SELECT auction, max_by(struct(bidder, price, channel, url, `dateTime`, extra), price, 10) AS ten
    FROM bid
    GROUP BY auction
)
LATERAL VIEW posexplode(ten) AS before, highest;
