"""The benchmark suite: data sets x networks x frameworks, simulated, replayed or trained; epoch seconds and speed-ups."""
