"""Networks: the zoo, small ones, users' own, and what their layers are."""
