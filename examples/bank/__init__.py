"""A bank whose total is zero: SQL views over transactions, and a consumer that sees other money."""
