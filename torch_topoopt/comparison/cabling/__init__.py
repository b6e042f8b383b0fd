"""How to cable servers: the speed of a wiring, its alternatives, and sheets for plugging it."""
