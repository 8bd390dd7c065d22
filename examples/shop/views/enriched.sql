-- key: till, number
SELECT
    sold.till,
    sold.number,
    sold.transaction_time,
    sold.transaction_timestamp,
    sold.transaction_id,
    sold.product_id,
    products.category AS product_category,
    products.item AS product_name,
    products.size AS product_size,
    products.cogs AS product_cogs,
    products.price AS product_price,
    products.contains_fruit,
    products.contains_veggies,
    products.contains_nuts,
    products.contains_caffeine,
    sold.price AS purchase_price,
    sold.quantity AS purchase_quantity,
    sold.is_member,
    sold.member_discount,
    sold.add_supplements,
    sold.supplement_price,
    sold.total_purchase
FROM sold LEFT JOIN products ON sold.product_id = products.product_id
WHERE sold.reason IS NULL
