-- The bids for every 123rd auction.
SELECT auction, price
FROM bid
WHERE MOD(auction, 123) = 0;
