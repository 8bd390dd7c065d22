WITH in_windows AS (
    SELECT
        *,
        unnest([
            time_bucket(INTERVAL 5 MINUTE, transaction_timestamp),
            time_bucket(INTERVAL 5 MINUTE, transaction_timestamp) - INTERVAL 5 MINUTE
        ]) AS window_start
    FROM sold
    WHERE reason IS NULL AND sent <= transaction_timestamp + INTERVAL 10 MINUTE
)
SELECT
    window_start,
    product_id,
    window_start + INTERVAL 10 MINUTE AS window_end,
    count(*) AS transactions,
    sum(quantity)::BIGINT AS quantities,
    sum(total_purchase)::DECIMAL(10, 2) AS sales
FROM in_windows
GROUP BY window_start, product_id
