"""torch's tests that fail on the backend, each with its reason; docs/torch.md has the same table."""

UNKNOWN_NAME = "the test makes its model only for the names mpi, nccl and gloo"
MONITORED = "torch has monitored_barrier for the name gloo alone"

FAILS: dict[str, str] = {
    "test_accumulate_gradients_no_sync": UNKNOWN_NAME,
    "test_accumulate_gradients_no_sync_allreduce_hook": UNKNOWN_NAME,
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": UNKNOWN_NAME,
    "test_accumulate_gradients_no_sync_grad_is_view": UNKNOWN_NAME,
    "test_monitored_barrier_gloo": MONITORED,
    "test_monitored_barrier_gloo_subgroup": MONITORED,
}
