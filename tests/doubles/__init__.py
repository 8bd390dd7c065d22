"""For tests of deltaq itself: reading with bounded patience, a plain compaction."""
