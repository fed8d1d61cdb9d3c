"""The control plane: who may use which slots of the switch, and who gets the results."""
