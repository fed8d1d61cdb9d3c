"""The pages that netfold writes, in a browser."""
