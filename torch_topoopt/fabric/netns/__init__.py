"""Emulated servers with a real kernel network: namespaces, cables with rates, kernel relays."""
