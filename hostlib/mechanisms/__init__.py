"""One file per mechanism. Each defines NAME, SUMMARY and schedule(world_size, ...); a library yardstick has no schedule.

schedule() may also take `size` (of the tensor, in bytes) and `turn` (the tensor's number). Its keyword-only parameters
are options, which follow the name: `ps:servers=4:assign=even`.
"""
