-- Queries over bids and auctions; SQLite runs them as they are, or another one with the same result.

SELECT auction, price * 2 + 1 AS p, LOWER(UPPER(channel)) AS c FROM bid WHERE price > 4 AND auction IN (1, 3);
SELECT auction, COUNT(*) AS n, COUNT(price) AS m, SUM(price) AS s, MIN(price) AS a, MAX(price) AS z FROM bid
    GROUP BY auction;
SELECT channel AS c, COUNT(*) FILTER (WHERE price > 5) AS f, COUNT(DISTINCT bidder) AS d, SUM(price * 2) + 1 AS s
    FROM bid WHERE price IS NOT NULL GROUP BY channel;
SELECT auction, COUNT(*) AS n FROM bid GROUP BY auction HAVING COUNT(*) > 11 AND MAX(price) > 3;
SELECT n, COUNT(*) AS auctions, SUM(n) AS s FROM (SELECT auction, COUNT(*) AS n FROM bid GROUP BY auction) GROUP BY n;
SELECT n, COUNT(DISTINCT low) AS d, MIN(low) AS a, MAX(high) AS z, MAX(low) FILTER (WHERE high > 14) AS m
    FROM (SELECT auction, channel, COUNT(*) AS n, MIN(price) AS low, MAX(price) AS high FROM bid
    GROUP BY auction, channel) GROUP BY n;
SELECT DISTINCT auction, channel FROM bid;
SELECT auction % 2 AS odd, bidder FROM bid GROUP BY auction % 2, bidder;
WITH cheap AS (SELECT auction, price FROM bid WHERE price < 5), dear AS (SELECT * FROM bid WHERE price > 12)
    SELECT auction, price FROM cheap UNION ALL SELECT bidder, price FROM dear UNION ALL SELECT * FROM cheap;
SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, at) AS rn FROM bid)
    WHERE rn <= 3;
SELECT auction, price, at FROM(SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY at DESC) AS n
    FROM bid) WHERE n = 1;
SELECT bidder, COUNT(*) AS n
    FROM (SELECT bidder, auction, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, at) AS rn
    FROM bid) WHERE rn <= 2 GROUP BY bidder;
SELECT b.auction, b.price, a.seller, a.category FROM bid AS b JOIN auction AS a ON b.auction = a.id
    WHERE a.category = 'x' AND b.price > 3;
SELECT b.price + a.seller AS s, a.id FROM bid b JOIN auction a ON a.id = b.auction AND b.price > a.seller * 4;
SELECT x.auction, y.bidder, a.category FROM bid AS x JOIN bid AS y ON x.auction = y.bidder
    AND x.price = y.price JOIN auction AS a ON a.id = x.auction WHERE x.price < 6;
SELECT b.at, a.at AS since FROM bid AS b JOIN auction AS a ON b.auction = a.id WHERE a.seller = b.bidder
    AND b.price = a.id AND b.price > a.seller;
SELECT a.id, a.at, b.price FROM auction AS a LEFT JOIN bid AS b ON a.id + 3 = b.auction AND b.price > 14;
SELECT a.id, b.bidder FROM auction AS a FULL JOIN (SELECT * FROM bid WHERE price = 7) AS b ON a.id = b.auction;
SELECT auction, at, MIN(price) OVER (PARTITION BY auction ORDER BY at) AS m FROM bid;
SELECT auction, at, COUNT(*) OVER (PARTITION BY auction ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING
    AND CURRENT ROW) AS n FROM bid;
SELECT auction, at, SUM(bidder) OVER (PARTITION BY auction ORDER BY at ROWS BETWEEN 2 PRECEDING
    AND CURRENT ROW) AS s, MAX(price) OVER (PARTITION BY auction ORDER BY at ROWS BETWEEN 2 PRECEDING
    AND CURRENT ROW) AS m FROM bid;
-- A size that is not a multiple of the slide.
SELECT window_end AS w, COUNT(*) AS n
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(at), INTERVAL '4' SECOND, INTERVAL '6' SECOND))
    GROUP BY window_start, window_end
-- In SQLite:
WITH RECURSIVE w(start) AS (SELECT -8 UNION ALL SELECT start + 4 FROM w WHERE start < 60)
    SELECT start + 6, COUNT(*) FROM (SELECT {SECONDS} AS s FROM bid) AS b JOIN w ON b.s >= start
    AND b.s < start + 6 GROUP BY 1;
SELECT auction, window_start AS w, COUNT(*) AS n, MAX(price) AS m FROM {TENS}
    GROUP BY auction, window_start, window_end
-- In SQLite:
SELECT auction, ({SECONDS}) / 10 * 10 AS w, COUNT(*), MAX(price) FROM bid GROUP BY 1, 2;
SELECT COUNT(*) AS n FROM {TENS} WHERE auction < 3 AND window_start > TIMESTAMP '2026-01-01 00:00:10'
    AND window_end <> TIMESTAMP '2026-01-01 00:00:40' GROUP BY window_start, window_end HAVING COUNT(*) > 1
-- In SQLite:
SELECT COUNT(*) FROM bid WHERE auction < 3 AND ({SECONDS}) / 10 IN (2, 4, 5) GROUP BY ({SECONDS}) / 10
    HAVING COUNT(*) > 1;
SELECT channel, window_end AS w
    FROM TABLE(HOP(DATA => TABLE bid, TIMECOL => DESCRIPTOR(at), SIZE => INTERVAL '10' SECOND, SLIDE => INTERVAL '5'
    SECOND))
    GROUP BY channel, window_start, window_end HAVING COUNT(*) > 3
-- In SQLite:
SELECT channel, w FROM (SELECT channel, ({SECONDS}) / 5 * 5 + 5 AS w FROM bid UNION ALL
    SELECT channel, ({SECONDS}) / 5 * 5 + 10 FROM bid) GROUP BY 1, 2 HAVING COUNT(*) > 3;
WITH dear AS (SELECT auction, at FROM bid WHERE price > 9) SELECT auction, window_start AS w, COUNT(*) AS n
    FROM TABLE(SESSION(DATA => TABLE dear PARTITION BY auction, TIMECOL => DESCRIPTOR(at), GAP => INTERVAL '6'
    SECOND))
    GROUP BY auction, window_start, window_end
-- In SQLite:
WITH dear AS (SELECT auction, {SECONDS} AS s FROM bid
    WHERE price > 9), begun AS (SELECT *, s - LAG(s, 1, -9) OVER (PARTITION BY auction ORDER BY s) >= 6 AS is_first
    FROM dear), numbered AS (SELECT *, SUM(is_first) OVER (PARTITION BY auction ORDER BY s) AS number
    FROM begun) SELECT auction, MIN(s) AS w, COUNT(*) AS n FROM numbered GROUP BY auction, number;
SELECT a.id, b.bidder, b.price FROM auction AS a JOIN bid AS b ON a.id = b.auction
    AND b.at BETWEEN a.at - INTERVAL '3' SECOND AND a.at + INTERVAL '6' SECOND WHERE b.price > 2
-- In SQLite:
SELECT a.id, b.bidder, b.price FROM auction AS a JOIN bid AS b ON a.id = b.auction
    AND b.at BETWEEN datetime(a.at, '-3 seconds') AND datetime(a.at, '+6 seconds') WHERE b.price > 2;
SELECT a.id, b.bidder, b.price, b.window_start AS w
    FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(at), INTERVAL '10' SECOND)) AS a
    JOIN {TENS} AS b ON a.id = b.auction AND a.window_start = b.window_start AND a.window_end = b.window_end
    AND a.seller <= b.bidder WHERE b.price > 2 AND a.window_start < b.window_end
-- In SQLite:
SELECT a.id, b.bidder, b.price, b.s / 10 * 10 AS w FROM (SELECT *, {SECONDS} AS s FROM auction) AS a
    JOIN (SELECT *, {SECONDS} AS s FROM bid) AS b ON a.id = b.auction AND a.s / 10 = b.s / 10
    WHERE b.price > 2 AND a.seller <= b.bidder;
SELECT a.id + b.bidder AS x, a.window_end AS w
    FROM TABLE(HOP(TABLE auction, DESCRIPTOR(at), INTERVAL '4' SECOND, INTERVAL '8' SECOND)) AS a
    JOIN TABLE(HOP(TABLE bid, DESCRIPTOR(at), INTERVAL '4' SECOND, INTERVAL '8' SECOND)) AS b ON a.window_start =
    b.window_start
    AND a.id % 2 = b.auction % 2 AND a.window_end = b.window_end
-- In SQLite:
WITH RECURSIVE w(start) AS (SELECT -8 UNION ALL SELECT start + 4 FROM w WHERE start < 60)
    SELECT a.id + b.bidder, start + 8 FROM (SELECT *, {SECONDS} AS s FROM auction) AS a
    JOIN (SELECT *, {SECONDS} AS s FROM bid) AS b ON a.id % 2 = b.auction % 2 JOIN w ON a.s >= start
    AND a.s < start + 8 AND b.s >= start AND b.s < start + 8;
SELECT b.at, a.category FROM bid AS b LEFT JOIN auction FOR SYSTEM_TIME AS OF b.at AS a ON a.id = b.auction
-- In SQLite:
SELECT b.at, (SELECT category FROM auction AS a WHERE a.id = b.auction
    AND a.at <= b.at ORDER BY a.at DESC LIMIT 1) FROM bid AS b;
-- Conditions select among the rows with their valid versions, and not among the versions that may be valid.
SELECT b.at, b.bidder, a.at AS since FROM bid AS b
    JOIN auction FOR SYSTEM_TIME AS OF b.at AS a ON a.id = b.auction AND a.seller + 1 > b.bidder
    WHERE a.at < TIMESTAMP '2026-01-01 00:00:20'
-- In SQLite:
SELECT b.at, b.bidder, a.at FROM bid AS b JOIN auction AS a ON a.id = b.auction AND a.at = (SELECT MAX(v.at)
    FROM auction AS v WHERE v.id = b.auction AND v.at <= b.at) WHERE a.seller + 1 > b.bidder
    AND a.at < '2026-01-01 00:00:20';
SELECT b.at, b.bidder, a.category, a.seller FROM bid AS b
    LEFT JOIN auction FOR SYSTEM_TIME AS OF b.at AS a ON a.id = b.auction
    AND a.at < TIMESTAMP '2026-01-01 00:00:20' AND a.seller > 0
-- In SQLite:
SELECT b.at, b.bidder, a.category, a.seller FROM bid AS b LEFT JOIN auction AS a ON a.id = b.auction
    AND a.at = (SELECT MAX(v.at) FROM auction AS v WHERE v.id = b.auction AND v.at <= b.at)
    AND a.at < '2026-01-01 00:00:20' AND a.seller > 0;
SELECT channel, AVG(price) AS a FROM bid GROUP BY channel
-- In SQLite:
SELECT channel, SUM(price) / COUNT(price) FROM bid GROUP BY channel;
