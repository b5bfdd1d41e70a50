-- The average of the winning bids of all auctions, by category.
SELECT category AS id, AVG(winning) AS final
FROM (
    SELECT MAX(b.price) AS winning, a.category
    FROM auction AS a
    JOIN bid AS b ON a.id = b.auction AND b.`dateTime` BETWEEN a.`dateTime` AND a.expires
    GROUP BY a.id, a.category
)
GROUP BY category;
