-- Queries whose keys may be null; SQLite runs them as they are, or another one with the same result.

SELECT k, COUNT(*) AS n, COUNT(k) AS m, SUM(v) AS s, COUNT(DISTINCT v) AS d FROM l GROUP BY k;
SELECT k, i, MAX(v) AS s FROM l GROUP BY k, i HAVING COUNT(*) > 1;
SELECT DISTINCT k, i FROM l;
SELECT n, COUNT(*) AS c FROM (SELECT k, COUNT(*) AS n FROM l GROUP BY k) GROUP BY n;
SELECT k, i, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v, at) AS rn FROM l) WHERE rn <= 2;
SELECT k, i, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k, i ORDER BY at DESC) AS rn FROM l) WHERE rn = 1;
SELECT k, at, SUM(v) OVER (PARTITION BY k ORDER BY at) AS s, COUNT(*) OVER (PARTITION BY k ORDER BY at) AS n FROM l;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l JOIN r ON l.k = r.name;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l JOIN r ON l.k = r.name AND l.i = r.number;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l JOIN r ON l.k = r.name AND l.v < r.w;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l JOIN r ON l.k = r.name AND l.v > 1 AND r.w > 1;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l JOIN r ON l.k IS NOT DISTINCT FROM r.name;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l JOIN r ON l.k IS NOT DISTINCT FROM r.name AND l.i = r.number;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l LEFT JOIN r ON l.k = r.name;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l LEFT JOIN r ON l.k = r.name AND l.i = r.number;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l LEFT JOIN r ON l.k = r.name AND l.v < r.w;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l LEFT JOIN r ON l.k = r.name AND l.v > 1 AND r.w > 1;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l LEFT JOIN r ON l.k IS NOT DISTINCT FROM r.name;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l LEFT JOIN r ON l.k IS NOT DISTINCT FROM r.name AND l.i = r.number;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l RIGHT JOIN r ON l.k = r.name;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l RIGHT JOIN r ON l.k = r.name AND l.i = r.number;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l RIGHT JOIN r ON l.k = r.name AND l.v < r.w;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l RIGHT JOIN r ON l.k = r.name AND l.v > 1 AND r.w > 1;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l RIGHT JOIN r ON l.k IS NOT DISTINCT FROM r.name;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l RIGHT JOIN r ON l.k IS NOT DISTINCT FROM r.name AND l.i = r.number;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l FULL JOIN r ON l.k = r.name;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l FULL JOIN r ON l.k = r.name AND l.i = r.number;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l FULL JOIN r ON l.k = r.name AND l.v < r.w;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l FULL JOIN r ON l.k = r.name AND l.v > 1 AND r.w > 1;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l FULL JOIN r ON l.k IS NOT DISTINCT FROM r.name;
SELECT l.k, l.i, l.v, r.name, r.number, r.w FROM l FULL JOIN r ON l.k IS NOT DISTINCT FROM r.name AND l.i = r.number;
SELECT l.k, l.v, s.n FROM l LEFT JOIN (SELECT name, COUNT(*) AS n FROM r GROUP BY name) AS s ON l.k = s.name;
SELECT s.k, s.n, r.w FROM (SELECT k, COUNT(*) AS n FROM l GROUP BY k) AS s FULL JOIN r ON s.k = r.name;
SELECT k, i IS DISTINCT FROM v AS a, i IS NOT DISTINCT FROM v AS b FROM l;
SELECT k, window_start AS w, COUNT(*) AS n, SUM(v) AS s
    FROM TABLE(TUMBLE(TABLE l, DESCRIPTOR(at), INTERVAL '10' SECOND)) GROUP BY k, window_start, window_end
-- In SQLite:
SELECT k, ({SECONDS}) / 10 * 10 AS w, COUNT(*), SUM(v) FROM l GROUP BY 1, 2;
SELECT k, window_start AS w, COUNT(*) AS n
    FROM TABLE(SESSION(TABLE l PARTITION BY k, DESCRIPTOR(at), INTERVAL '2' SECOND))
    GROUP BY k, window_start, window_end
-- In SQLite:
WITH t AS (SELECT k, {SECONDS} AS s
    FROM l), begun AS (SELECT *, s - LAG(s, 1, -9) OVER (PARTITION BY k ORDER BY s) >= 2 AS is_first
    FROM t), numbered AS (SELECT *, SUM(is_first) OVER (PARTITION BY k ORDER BY s) AS number FROM begun)
    SELECT k, MIN(s) AS w, COUNT(*) AS n FROM numbered GROUP BY k, number;
SELECT l.k, l.v, r.w FROM TABLE(TUMBLE(TABLE l, DESCRIPTOR(at), INTERVAL '10' SECOND)) AS l
    JOIN TABLE(TUMBLE(TABLE r, DESCRIPTOR(since), INTERVAL '10' SECOND)) AS r ON l.k = r.name
    AND l.window_start = r.window_start AND l.window_end = r.window_end
-- In SQLite:
SELECT l.k, l.v, r.w FROM (SELECT *, {SECONDS} AS s FROM l) AS l JOIN (SELECT *, {SECONDS_SINCE} AS s
    FROM r) AS r ON l.k = r.name AND l.s / 10 = r.s / 10;
SELECT l.k, l.v, r.w FROM l JOIN r ON l.k = r.name AND r.since BETWEEN l.at - INTERVAL '3' SECOND AND l.at
-- In SQLite:
SELECT l.k, l.v, r.w FROM l JOIN r ON l.k = r.name AND r.since BETWEEN datetime(l.at, '-3 seconds') AND l.at;
SELECT l.k, l.v, r.w FROM l LEFT JOIN r FOR SYSTEM_TIME AS OF l.at AS r ON l.k = r.name AND r.w > l.v
-- In SQLite:
SELECT l.k, l.v, (SELECT CASE WHEN w > l.v THEN w END FROM r WHERE name = l.k
    AND since <= l.at ORDER BY since DESC LIMIT 1) FROM l;
