-- key: till, number
WITH texts AS (
    SELECT *, try(decode(value)) AS text FROM purchases
), parsed AS (
    SELECT *, CASE WHEN json_valid(text) THEN text::JSON END AS purchase FROM texts
), fields AS (
    SELECT
        _partition AS till,
        _offset AS number,
        _timestamp AS sent,
        value,
        purchase->>'$.transaction_time' AS transaction_time,
        try_cast(purchase->>'$.transaction_time' AS TIMESTAMPTZ) AS transaction_timestamp,
        purchase->>'$.transaction_id' AS transaction_id,
        purchase->>'$.product_id' AS product_id,
        try_cast(purchase->>'$.price' AS DECIMAL(10, 2)) AS price,
        try_cast(purchase->>'$.quantity' AS INTEGER) AS quantity,
        try_cast(purchase->>'$.is_member' AS BOOLEAN) AS is_member,
        try_cast(purchase->>'$.member_discount' AS DECIMAL(10, 2)) AS member_discount,
        try_cast(purchase->>'$.add_supplements' AS BOOLEAN) AS add_supplements,
        try_cast(purchase->>'$.supplement_price' AS DECIMAL(10, 2)) AS supplement_price,
        try_cast(purchase->>'$.total_purchase' AS DECIMAL(10, 2)) AS total_purchase
    FROM parsed
)
SELECT
    *,
    CASE
        WHEN coalesce(
            product_id IS NULL OR transaction_timestamp IS NULL OR is_member IS NULL
            OR add_supplements IS NULL OR quantity * (price + supplement_price) IS NULL
            OR member_discount IS NULL OR total_purchase IS NULL, true
        ) THEN 'not a purchase'
        WHEN total_purchase <> round(quantity * (price + supplement_price) * (1 - member_discount), 2)
        THEN 'wrong total'
    END AS reason
FROM fields
