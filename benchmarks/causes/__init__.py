"""How often the first cause is right: on causes that public sources state, and on made-up faults."""
