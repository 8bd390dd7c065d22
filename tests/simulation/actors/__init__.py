"""The actors of a run: clients, group members, maintainers, and what goes wrong."""
