"""Neural networks: the zoo, small ones, users' own, and the inspection of their layers."""
