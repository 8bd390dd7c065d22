"""The console: a live web page of roots, topics, messages and groups. Needs the extra
`[console]`.
"""
