-- key: till, number
SELECT till, number, sent, value, reason FROM sold WHERE reason IS NOT NULL
