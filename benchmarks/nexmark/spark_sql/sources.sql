-- The views of Nexmark over the table of events. The runner defines the table `datagen`.
CREATE VIEW person AS
SELECT person_id AS id, person_name AS name, person_emailAddress AS emailAddress,
       person_creditCard AS creditCard, person_city AS city, person_state AS state, `dateTime`, extra
FROM datagen
WHERE event_type = 0;

CREATE VIEW auction AS
SELECT auction_id AS id, auction_itemName AS itemName, auction_description AS description,
       auction_initialBid AS initialBid, auction_reserve AS reserve, `dateTime`, auction_expires AS expires,
       auction_seller AS seller, auction_category AS category, extra
FROM datagen
WHERE event_type = 1;

CREATE VIEW bid AS
SELECT bid_auction AS auction, bid_bidder AS bidder, bid_price AS price, bid_channel AS channel,
       bid_url AS url, `dateTime`, extra
FROM datagen
WHERE event_type = 2;

-- Auctions with a watermark of the time at which they close.
CREATE VIEW closing_auction AS
SELECT *
FROM auction WATERMARK CAST(expires AS TIMESTAMP) AS closes DELAY OF INTERVAL 4 SECONDS;
