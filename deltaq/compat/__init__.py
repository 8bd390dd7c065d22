"""Other clients' module layouts on top of deltaq, for programs that are not to be changed."""
