-- `MATCH_RECOGNIZE`
SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY auction ORDER BY time MEASURES A.price AS p PATTERN (A B) DEFINE A AS A.price > 1) AS m;
-- `PROCTIME()` outside of a look-up, `CURRENT_TIMESTAMP`, `RAND`, `UUID`
SELECT PROCTIME() AS c FROM t;
SELECT CURRENT_TIMESTAMP AS c FROM t;
SELECT RAND() AS c FROM t;
SELECT UUID() AS c FROM t;
-- an aggregate in an aggregate, in `WHERE` or in `GROUP BY`
SELECT auction, MAX(COUNT(*)) AS n FROM t GROUP BY auction;
SELECT auction, COUNT(*) AS n FROM t WHERE COUNT(*) > 1 GROUP BY auction;
SELECT COUNT(*) AS n FROM t GROUP BY COUNT(*);
-- an aggregate over all rows
SELECT COUNT(*) AS n FROM t;
-- `SUM(DISTINCT …)`, `AVG(DISTINCT …)`
SELECT auction, SUM(DISTINCT price) AS s FROM t GROUP BY auction;
SELECT auction, AVG(DISTINCT price) AS s FROM t GROUP BY auction;
-- `FIRST_VALUE`, `LAST_VALUE`, `APPROX_COUNT_DISTINCT` over corrected rows
SELECT n, FIRST_VALUE(a) AS f FROM (SELECT auction AS a, COUNT(*) AS n FROM t GROUP BY auction) GROUP BY n;
SELECT n, LAST_VALUE(a) AS f FROM (SELECT auction AS a, COUNT(*) AS n FROM t GROUP BY auction) GROUP BY n;
SELECT n, APPROX_COUNT_DISTINCT(a) AS f FROM (SELECT auction AS a, COUNT(*) AS n FROM t GROUP BY auction) GROUP BY n;
-- `GROUP BY TUMBLE(time, …)` with `TUMBLE_START`
SELECT TUMBLE_START(time, INTERVAL '1' MINUTE) AS s FROM t GROUP BY TUMBLE(time, INTERVAL '1' MINUTE);
SELECT COUNT(*) AS n FROM t GROUP BY TUMBLE(time, INTERVAL '1' MINUTE);
-- windows without aggregates, `SELECT * FROM TABLE(TUMBLE(…))`
SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(time), INTERVAL '10' SECOND));
-- `CUMULATE`, joins of `SESSION`
SELECT auction, window_start, COUNT(*) AS n FROM TABLE(CUMULATE(TABLE t, DESCRIPTOR(time), INTERVAL '1' MINUTE, INTERVAL '1' HOUR)) GROUP BY auction, window_start, window_end;
SELECT a.auction, b.price FROM TABLE(SESSION(TABLE t PARTITION BY auction, DESCRIPTOR(time), INTERVAL '10' SECOND)) AS a  JOIN TABLE(SESSION(TABLE u PARTITION BY auction, DESCRIPTOR(time), INTERVAL '10' SECOND)) AS b ON a.auction = b.auction AND a.window_start = b.window_start AND a.window_end = b.window_end;
-- outer interval joins
SELECT b.auction, o.price FROM t b LEFT JOIN u o ON b.auction = o.auction AND b.time BETWEEN o.time AND o.time + INTERVAL '10' SECOND;
SELECT b.auction, o.price FROM t b RIGHT JOIN u o ON b.auction = o.auction AND b.time BETWEEN o.time AND o.time + INTERVAL '10' SECOND;
SELECT b.auction, o.price FROM t b FULL JOIN u o ON b.auction = o.auction AND b.time BETWEEN o.time AND o.time + INTERVAL '10' SECOND;
-- outer window joins
SELECT a.auction, b.price FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(time), INTERVAL '10' SECOND)) AS a LEFT JOIN TABLE(TUMBLE(TABLE u, DESCRIPTOR(time), INTERVAL '10' SECOND)) AS b ON a.auction = b.auction AND a.window_start = b.window_start AND a.window_end = b.window_end;
SELECT a.auction, b.price FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(time), INTERVAL '10' SECOND)) AS a RIGHT JOIN TABLE(TUMBLE(TABLE u, DESCRIPTOR(time), INTERVAL '10' SECOND)) AS b ON a.auction = b.auction AND a.window_start = b.window_start AND a.window_end = b.window_end;
SELECT a.auction, b.price FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(time), INTERVAL '10' SECOND)) AS a FULL JOIN TABLE(TUMBLE(TABLE u, DESCRIPTOR(time), INTERVAL '10' SECOND)) AS b ON a.auction = b.auction AND a.window_start = b.window_start AND a.window_end = b.window_end;
-- `OVER` with decimals, `RANK`, `LAG`, frames after the row
SELECT auction, SUM(CAST(price AS DECIMAL(9, 2))) OVER (PARTITION BY auction ORDER BY time ) AS s FROM t;
SELECT auction, RANK() OVER (PARTITION BY auction ORDER BY time ) AS s FROM t;
SELECT auction, LAG(price) OVER (PARTITION BY auction ORDER BY time ) AS s FROM t;
SELECT auction, SUM(price) OVER (PARTITION BY auction ORDER BY time ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING) AS s FROM t;
-- `INTERVAL` of months
SELECT time + INTERVAL '1' MONTH AS t FROM t;
-- `CAST` of a text to a time, `TO_TIMESTAMP`, the type `TIME`
SELECT CAST(name AS TIMESTAMP) AS c FROM t;
SELECT CAST(name AS DATE) AS c FROM t;
SELECT TO_TIMESTAMP(name) AS c FROM t;
SELECT CAST(time AS TIME) AS c FROM t;
-- `UNION` without `ALL`, `INTERSECT`, `EXCEPT`, `IN` with a query
SELECT auction FROM t UNION SELECT auction FROM u;
SELECT auction FROM t INTERSECT SELECT auction FROM u;
SELECT auction FROM t EXCEPT SELECT auction FROM u;
SELECT auction FROM t WHERE auction IN (SELECT auction FROM u);
-- `ORDER BY`, `LIMIT`
SELECT auction FROM t ORDER BY auction;
SELECT auction FROM t LIMIT 3;
-- arrays, maps, rows and their functions; JSON; functions of users
SELECT ARRAY[1, 2] AS c FROM t;
SELECT MAP['a', 1] AS c FROM t;
SELECT ROW(1, 2) AS c FROM t;
SELECT CARDINALITY(name) AS c FROM t;
SELECT JSON_VALUE(name, '$') AS c FROM t;
SELECT mine(1) AS c FROM t;
-- late rows of joins and `OVER`; allowed lateness of `SESSION` and of windows in views
SELECT a.auction, b.price FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(time), INTERVAL '10' SECOND)) AS a  JOIN TABLE(TUMBLE(TABLE u, DESCRIPTOR(time), INTERVAL '10' SECOND)) AS b ON a.auction = b.auction AND a.window_start = b.window_start AND a.window_end = b.window_end;
SELECT b.auction, o.price FROM t b  JOIN u o ON b.auction = o.auction AND b.time BETWEEN o.time AND o.time + INTERVAL '10' SECOND;
SELECT auction, SUM(price) OVER (PARTITION BY auction ORDER BY time ) AS s FROM t;
SELECT auction, COUNT(*) AS n FROM TABLE(SESSION(TABLE t PARTITION BY auction, DESCRIPTOR(time), INTERVAL '10' SECOND)) GROUP BY auction, window_start, window_end;
CREATE TEMPORARY VIEW v AS SELECT auction, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(time), INTERVAL '10' SECOND)) GROUP BY auction, window_start, window_end;
