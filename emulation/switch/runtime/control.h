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

// One frame through the program without any port: what leaves is written to `out` as (port, bytes, frame) one behind
// the other. Returns how much was written.
uint32_t nf_process(uint32_t port, const uint8_t *frame, uint32_t bytes, uint8_t *out, uint32_t room) {
    captured_t captured = {out, room, 0};
    process_packet(port, frame, bytes, capture, &captured);
    return captured.used;
}

// What the program told the controller since the last call (TOLD_*); returns how many bytes.
uint32_t nf_told(uint8_t *out) {
    uint32_t bytes = told_bytes;
    memcpy(out, told, bytes);
    told_bytes = 0;
    return bytes;
}
void nf_cpu_port(uint32_t port) { cpu_port = port; }

// ---- tables -----------------------------------------------------------------------------------------------------

static entry_t *entry_of(uint32_t table, uint32_t handle) {
    return handle == 0 ? &tables[table].fallback : tables[table].entries[handle - 1];
}

// Returns the entry's handle. nf_table_commit follows a batch.
uint32_t nf_table_insert(uint32_t table, const uint64_t *value, const uint64_t *mask, int32_t priority, int32_t action,
                         const uint64_t *params, uint32_t words, uint32_t member, uint32_t group) {
    uint32_t handle = table_insert(table, value, mask, priority, action, params, words);
    entry_t *e = entry_of(table, handle);
    e->member = member;
    e->group = group;
    return handle;
}
void nf_table_modify(uint32_t table, uint32_t handle, int32_t action, const uint64_t *params, uint32_t words,
                     uint32_t member, uint32_t group) {
    entry_t *e = entry_of(table, handle);
    action_set(&e->own, action, params, words);
    e->member = member;
    e->group = group;
}
void nf_table_delete(uint32_t table, uint32_t handle) {
    table_forget(&tables[table]);
    free(tables[table].entries[handle - 1]);
    tables[table].entries[handle - 1] = NULL;
}
void nf_table_commit(uint32_t table) { table_rebuild(&tables[table]); }
void nf_table_hits(uint32_t table, uint32_t handle, uint64_t *out) {
    const entry_t *e = entry_of(table, handle);
    out[0] = e->hits.packets;
    out[1] = e->hits.bytes;
}
void nf_table_set_hits(uint32_t table, uint32_t handle, uint64_t packets, uint64_t bytes) {
    entry_of(table, handle)->hits = (counter_t){packets, bytes};
}
// Microseconds since the entry was written or last hit.
uint64_t nf_table_idle(uint32_t table, uint32_t handle) { return clock_us() - entry_of(table, handle)->hit_us; }
meter_t *nf_table_meter(uint32_t table, uint32_t handle) { return &entry_of(table, handle)->meter; }

// cir, cburst, pir, pburst, eburst; NULL: every packet is green.
void nf_meter_set(meter_t *meter, uint32_t index, const uint64_t *rates) {
    if (rates == NULL) meter_reset(&meter[index]);
    else meter_set(&meter[index], rates[0], rates[1], rates[2], rates[3], rates[4]);
}

// Packets and bytes of each colour, green first.
void nf_meter_marked(meter_t *meter, uint32_t index, uint64_t *value, bool write) {
    counter_t *marked = meter[index].marked;
    if (write) memcpy(marked, value, sizeof meter->marked);
    else memcpy(value, marked, sizeof meter->marked);
}

// ---- action profiles --------------------------------------------------------------------------------------------

// Member `handle`, from 1: made or changed.
void nf_member(uint32_t profile, uint32_t handle, int32_t action, const uint64_t *params, uint32_t words) {
    profile_t *p = &profiles[profile];
    if (handle > p->member_count) {
        p->members = realloc(p->members, handle * sizeof *p->members);
        for (; p->member_count < handle; p->member_count++) p->members[p->member_count].action = -1;
    }
    action_set(&p->members[handle - 1], action, params, words);
}
// Group `handle`, from 1, chooses among these members; `watched`: the port that each depends on, or NULL.
void nf_choice(uint32_t profile, uint32_t handle, const uint32_t *members, const uint16_t *watched, uint32_t count) {
    profile_t *p = &profiles[profile];
    if (handle > p->group_count) {
        p->groups = realloc(p->groups, handle * sizeof *p->groups);
        for (; p->group_count < handle; p->group_count++) p->groups[p->group_count] = (choice_t){0, NULL, NULL};
    }
    choice_t *g = &p->groups[handle - 1];
    free(g->members);
    free(g->watched);
    *g = (choice_t){count, NULL, NULL};
    if (count == 0) return;
    g->members = malloc(count * sizeof *members);
    memcpy(g->members, members, count * sizeof *members);
    if (watched == NULL) return;
    g->watched = malloc(count * sizeof *watched);
    memcpy(g->watched, watched, count * sizeof *watched);
}

// ---- value sets, replication ------------------------------------------------------------------------------------

// Values and masks alternate, each of `words` words.
void nf_value_set(uint32_t set, const uint64_t *values, uint32_t words, uint32_t count) {
    value_set_t *s = &value_sets[set];
    free(s->members);
    *s = (value_set_t){count == 0 ? NULL : calloc(count, sizeof *s->members), count};
    for (uint32_t i = 0; i < count; i++) {
        memcpy(s->members[i].value, values + 2 * i * words, words * sizeof *values);
        memcpy(s->members[i].mask, values + (2 * i + 1) * words, words * sizeof *values);
    }
}

static void group_set(group_t *group, const uint16_t *port_and_instance, uint32_t count) {
    free(group->replicas);
    *group = (group_t){count, count == 0 ? NULL : malloc(count * sizeof(replica_t))};
    for (uint32_t i = 0; i < count; i++)
        group->replicas[i] = (replica_t){port_and_instance[2 * i], port_and_instance[2 * i + 1]};
}
void nf_group(uint32_t group, const uint16_t *port_and_instance, uint32_t count) {
    group_set(&groups[group], port_and_instance, count);
}
void nf_session(uint32_t session, bool used, const uint16_t *port_and_instance, uint32_t count, uint32_t group,
                uint32_t bytes) {
    session_t *s = &sessions[session];
    group_set(&s->own, port_and_instance, count);
    s->used = used;
    s->group = group;
    s->bytes = bytes;
}

static void program_close(void) {
    for (uint32_t i = 0; i < MAX_GROUPS; i++) free(groups[i].replicas);
    for (uint32_t i = 0; i < MAX_SESSIONS; i++) free(sessions[i].own.replicas);
    for (uint32_t i = 0; i < VALUE_SETS; i++) free(value_sets[i].members);
    for (uint32_t i = 0; i < PROFILES; i++) {
        for (uint32_t k = 0; k < profiles[i].group_count; k++) {
            free(profiles[i].groups[k].members);
            free(profiles[i].groups[k].watched);
        }
        free(profiles[i].groups);
        free(profiles[i].members);
    }
    for (uint32_t i = 0; i < TABLES; i++) {
        table_forget(&tables[i]);
        for (uint32_t k = 0; k < tables[i].count; k++) free(tables[i].entries[k]);
        free(tables[i].entries);
    }
}
