SELECT to_account AS account, sum(amount) AS credits FROM transactions GROUP BY 1
