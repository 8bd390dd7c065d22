-- key: account
SELECT account, credits - debits AS balance FROM credits JOIN debits USING (account)
