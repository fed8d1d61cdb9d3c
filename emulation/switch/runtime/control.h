// What a controller may do to the running program, and a packet's way through it without ports. Follows the generated
// code in its translation unit. Exported: nf_* (called from dataplane.py under nf_lock).
#pragma once

typedef struct { uint8_t *out; uint32_t room, used; } captured_t;

static void capture(void *to, uint32_t port, const uint8_t *frame, uint32_t bytes) {
    captured_t *c = to;
    if (c->room - c->used >= 8 + bytes) {
        memcpy(c->out + c->used, &port, 4);
        memcpy(c->out + c->used + 4, &bytes, 4);
        memcpy(c->out + c->used + 8, frame, bytes);
        c->used += 8 + bytes;
    }
}

// One frame through the program without any port: what leaves is written to `out` as (port, bytes,
// frame) one behind the other. Returns how much was written.
uint32_t nf_process(uint32_t port, const uint8_t *frame, uint32_t bytes, uint8_t *out, uint32_t room) {
    captured_t captured = {out, room, 0};
    process_packet(port, frame, bytes, capture, &captured);
    return captured.used;
}

static void entry_set(entry_t *e, int32_t action, const uint64_t *params, uint32_t count) {
    e->action = action;
    memset(e->params, 0, sizeof e->params);
    memcpy(e->params, params, count * sizeof *params);
    e->used = true;
}

// nf_table_commit follows a batch of table calls. Returns the entry's handle.
uint32_t nf_table_insert(uint32_t table, const uint64_t *value, const uint64_t *mask, int32_t priority,
                         int32_t action, const uint64_t *params, uint32_t count) {
    table_t *t = &tables[table];
    uint32_t i = 0;
    while (i < t->count && t->entries[i] != NULL) i++;
    if (i == t->room) {
        t->room = t->room == 0 ? 16 : 2 * t->room;
        t->entries = realloc(t->entries, t->room * sizeof *t->entries);
    }
    if (i == t->count) t->count++;
    entry_t *e = t->entries[i] = calloc(1, sizeof **t->entries);
    for (uint32_t k = 0; k < t->keys; k++) { e->mask[k] = mask[k]; e->value[k] = value[k] & mask[k]; }
    e->priority = priority;
    e->handle = i + 1;
    entry_set(e, action, params, count);
    return e->handle;
}
void nf_table_modify(uint32_t table, uint32_t handle, int32_t action, const uint64_t *params, uint32_t count) {
    entry_t *e = handle == 0 ? &tables[table].fallback : tables[table].entries[handle - 1];
    entry_set(e, action, params, count);
}
void nf_table_delete(uint32_t table, uint32_t handle) {
    table_forget_tuples(&tables[table]);
    free(tables[table].entries[handle - 1]);
    tables[table].entries[handle - 1] = NULL;
}
void nf_table_commit(uint32_t table) { table_rebuild(&tables[table]); }
void nf_table_hits(uint32_t table, uint32_t handle, uint64_t *out) {
    const entry_t *e = handle == 0 ? &tables[table].fallback : tables[table].entries[handle - 1];
    out[0] = e->hits.packets;
    out[1] = e->hits.bytes;
}

void nf_table_set_hits(uint32_t table, uint32_t handle, uint64_t packets, uint64_t bytes) {
    entry_t *e = handle == 0 ? &tables[table].fallback : tables[table].entries[handle - 1];
    e->hits = (counter_t){packets, bytes};
}

void nf_group(uint32_t group, const uint16_t *port_and_instance, uint32_t count) {
    free(groups[group].replicas);
    groups[group] = (group_t){count, count == 0 ? NULL : malloc(count * sizeof(replica_t))};
    for (uint32_t i = 0; i < count; i++)
        groups[group].replicas[i] = (replica_t){port_and_instance[2 * i], port_and_instance[2 * i + 1]};
}

static void program_close(void) {
    for (uint32_t i = 0; i < MAX_GROUPS; i++) free(groups[i].replicas);
    for (uint32_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        table_forget_tuples(&tables[i]);
        for (uint32_t k = 0; k < tables[i].count; k++) free(tables[i].entries[k]);
        free(tables[i].entries);
    }
}
