"""The controller of a switched network: hosts report flows and are told their paths.

`state` decides (pure), `messages` reads requests, `store` keeps what must outlive a restart,
`service` speaks HTTP, and `client` is what a host uses.
"""
