SELECT from_account AS account, sum(amount) AS debits FROM transactions GROUP BY 1
