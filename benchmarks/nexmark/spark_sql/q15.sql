-- Bids, bidders and auctions of each day, by ranges of prices.
SELECT date_format(`dateTime`, 'yyyy-MM-dd') AS `day`,
       count(*) AS total_bids,
       count_if(price < 10000) AS rank1_bids,
       count_if(price >= 10000 AND price < 1000000) AS rank2_bids,
       count_if(price >= 1000000) AS rank3_bids,
       size(collect_set(bidder)) AS total_bidders,
       size(collect_set(bidder) FILTER (WHERE price < 10000)) AS rank1_bidders,
       size(collect_set(bidder) FILTER (WHERE price >= 10000 AND price < 1000000)) AS rank2_bidders,
       size(collect_set(bidder) FILTER (WHERE price >= 1000000)) AS rank3_bidders,
       size(collect_set(auction)) AS total_auctions,
       size(collect_set(auction) FILTER (WHERE price < 10000)) AS rank1_auctions,
       size(collect_set(auction) FILTER (WHERE price >= 10000 AND price < 1000000)) AS rank2_auctions,
       size(collect_set(auction) FILTER (WHERE price >= 1000000)) AS rank3_auctions
FROM bid
GROUP BY date_format(`dateTime`, 'yyyy-MM-dd');
