"""Programs for Kafka that run on deltaq after one line was changed."""
