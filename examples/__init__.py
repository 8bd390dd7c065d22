"""Programs that show deltaq at work."""
