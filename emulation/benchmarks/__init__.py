"""How fast switches are."""
