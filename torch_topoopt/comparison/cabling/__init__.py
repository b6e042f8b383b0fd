"""How to cable servers: what a wiring gives, what others would, and the sheets to plug it by."""
