-- Sales by month; months that don't have sales are left out.
CREATE TABLE IF NOT EXISTS sales (
    id          BIGINT PRIMARY KEY,
    customer    VARCHAR(80) NOT NULL,
    sold_at     TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    price       NUMERIC(10, 2) CHECK (price >= 0)
);

INSERT INTO sales (id, customer, price) VALUES
    (1, 'Ada', 10.50),
    (2, 'O''Brien', 20.00),
    (3, 'Grace', 5.25);

WITH months AS (
    SELECT
        date_trunc('month', sold_at) AS month,
        sum(price) AS total,
        count(*) AS number
    FROM sales
    WHERE customer <> 'test'
    GROUP BY 1
)
SELECT
    month,
    total,
    CASE
        WHEN number > 100 THEN 'many'
        WHEN number > 10 THEN 'some'
        ELSE 'few'
    END AS kind,
    coalesce(lag(total) OVER (ORDER BY month), 0) AS before
FROM months
ORDER BY month;
