"""One file per mechanism. Each defines NAME, SUMMARY and schedule(world_size); a library yardstick has no schedule."""
