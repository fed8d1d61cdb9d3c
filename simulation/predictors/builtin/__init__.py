"""One file per predictor: its `SPEC`, and the function that predicts."""
