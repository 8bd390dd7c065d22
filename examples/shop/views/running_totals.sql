SELECT
    product_id,
    max(transaction_timestamp) AS event_time,
    count(*) AS transactions,
    sum(quantity)::BIGINT AS quantities,
    sum(total_purchase)::DECIMAL(10, 2) AS sales
FROM sold
WHERE reason IS NULL
GROUP BY product_id
