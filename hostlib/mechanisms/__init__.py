"""One file per mechanism. Each defines NAME, SUMMARY and schedule(world_size, ...); a library yardstick has no schedule,
and may define TRANSPORT, what ranks' messages must go by for the library to be there, or DEVICE, where tensors must be.

schedule() may also take `size` (of the tensor, in bytes) and `turn` (the tensor's number). Its keyword-only parameters
are options, which follow the name: `ps:servers=4:assign=even`.
"""
