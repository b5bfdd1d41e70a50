-- Each auction with its winning bid. A list of an auction's bids needs half of the CPU time of a join with them.
CREATE VIEW auction_or_bid AS
SELECT id, struct(*) AS auction, NULL AS bid
FROM auction
UNION ALL
SELECT auction AS id, NULL AS auction,
       struct(price, -unix_millis(CAST(`dateTime` AS TIMESTAMP)) AS earliness, bidder, `dateTime`, extra) AS bid
FROM bid;

SELECT auction.*, id AS auction, winning.bidder, winning.price, winning.`dateTime` AS bid_dateTime,
       winning.extra AS bid_extra
FROM (
    SELECT id, auction,
           array_max(filter(bids, bid -> bid.`dateTime` BETWEEN auction.`dateTime` AND auction.expires)) AS winning
    FROM (
        SELECT id, any_value(auction) IGNORE NULLS AS auction, collect_list(bid) AS bids
        FROM auction_or_bid
        GROUP BY id
    )
)
WHERE winning IS NOT NULL;
