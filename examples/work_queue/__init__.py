"""A service that sends mails to a flaky address book, with a share group as its work queue."""
