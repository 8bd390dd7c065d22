"""How fast deltaq is, measured from outside through its public clients, with every message
accounted for.
"""
