"""The controller of a switched network: hosts report flows and get their paths.

`state` decides (pure), `messages` reads requests, `store` keeps the persistent state, `service`
speaks HTTP, and `client` is for hosts.
"""
