SELECT sum(balance) AS total FROM balance
