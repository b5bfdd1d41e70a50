-- Persons who registered and opened an auction in the same ten seconds.
SELECT p.id, p.name, p.window.start AS starttime
FROM (
    SELECT id, name, window(`dateTime`, '10 seconds') AS window
    FROM timed_person
    GROUP BY id, name, window(`dateTime`, '10 seconds')
) AS p
JOIN (
    SELECT seller, window(`dateTime`, '10 seconds') AS window
    FROM timed_auction
    GROUP BY seller, window(`dateTime`, '10 seconds')
) AS a
ON p.id = a.seller AND p.window = a.window;
