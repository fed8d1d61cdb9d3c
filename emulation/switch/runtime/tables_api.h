// What a controller may do to the running program: table entries, meters, action profiles, value sets, replication. All
// under nf_lock. What needs memory returns false (or no handle) when there is none, and has changed nothing then.
#pragma once

#include "base.h"

#include "meter.h"
#include "runtime.h"
#include "table.h"

// ---- tables -----------------------------------------------------------------------------------------------------

static entry_t *entry_of(uint32_t table, uint32_t handle) {
    return handle == 0 ? &tables[table].fallback : tables[table].entries[handle - 1];
}

// Returns the entry's handle, 0 for no memory. nf_table_commit follows a batch.
uint32_t nf_table_insert(uint32_t table, const uint64_t *value, const uint64_t *mask, int32_t priority, int32_t action,
                         const uint64_t *params, uint32_t words, uint32_t member, uint32_t group) {
    uint32_t handle = table_insert(table, value, mask, priority, action, params, words);
    if (handle == 0) return 0;
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
    if (rates == NULL)
        meter_reset(&meter[index]);
    else
        meter_set(&meter[index], rates[0], rates[1], rates[2], rates[3], rates[4]);
}

// Packets and bytes of each colour, green first.
void nf_meter_marked(meter_t *meter, uint32_t index, uint64_t *value, bool write) {
    counter_t *marked = meter[index].marked;
    if (write)
        memcpy(marked, value, sizeof meter->marked);
    else
        memcpy(value, marked, sizeof meter->marked);
}

// ---- action profiles --------------------------------------------------------------------------------------------

// Member `handle`, from 1: made or changed.
bool nf_member(uint32_t profile, uint32_t handle, int32_t action, const uint64_t *params, uint32_t words) {
    profile_t *p = &profiles[profile];
    if (handle > p->member_count) {
        if (!grown(&p->members, handle * sizeof *p->members)) return false;
        for (; p->member_count < handle; p->member_count++) p->members[p->member_count].action = -1;
    }
    action_set(&p->members[handle - 1], action, params, words);
    return true;
}
// Group `handle`, from 1, chooses among these members; `watched`: the port that each depends on, or NULL.
bool nf_choice(uint32_t profile, uint32_t handle, const uint32_t *members, const uint16_t *watched, uint32_t count) {
    profile_t *p = &profiles[profile];
    if (handle > p->group_count) {
        if (!grown(&p->groups, handle * sizeof *p->groups)) return false;
        for (; p->group_count < handle; p->group_count++) p->groups[p->group_count] = (choice_t){0, NULL, NULL};
    }
    choice_t made = {count, NULL, NULL}, *g = &p->groups[handle - 1];
    if (count > 0 && (made.members = copied(members, count * sizeof *members)) == NULL) return false;
    if (count > 0 && watched != NULL && (made.watched = copied(watched, count * sizeof *watched)) == NULL) {
        free(made.members);
        return false;
    }
    free(g->members);
    free(g->watched);
    *g = made;
    return true;
}

// ---- value sets, replication ------------------------------------------------------------------------------------

// Values and masks alternate, each of `words` words.
bool nf_value_set(uint32_t set, const uint64_t *values, uint32_t words, uint32_t count) {
    value_set_t *s = &value_sets[set];
    set_member_t *members = count == 0 ? NULL : calloc(count, sizeof *members);
    if (count > 0 && members == NULL) return false;
    free(s->members);
    *s = (value_set_t){members, count};
    for (uint32_t i = 0; i < count; i++) {
        memcpy(s->members[i].value, values + 2 * i * words, words * sizeof *values);
        memcpy(s->members[i].mask, values + (2 * i + 1) * words, words * sizeof *values);
    }
    return true;
}

static bool group_set(group_t *group, const uint16_t *port_and_instance, uint32_t count) {
    replica_t *replicas = count == 0 ? NULL : malloc(count * sizeof *replicas);
    if (count > 0 && replicas == NULL) return false;
    free(group->replicas);
    *group = (group_t){count, replicas};
    for (uint32_t i = 0; i < count; i++)
        replicas[i] = (replica_t){port_and_instance[2 * i], port_and_instance[2 * i + 1]};
    return true;
}
bool nf_group(uint32_t group, const uint16_t *port_and_instance, uint32_t count) {
    return group_set(&groups[group], port_and_instance, count);
}
bool nf_session(uint32_t session, bool used, const uint16_t *port_and_instance, uint32_t count, uint32_t group,
                uint32_t bytes) {
    session_t *s = &sessions[session];
    if (!group_set(&s->own, port_and_instance, count)) return false;
    s->used = used;
    s->group = group;
    s->bytes = bytes;
    return true;
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
        for (uint32_t k = 0; k < tables[i].count; k++) free(tables[i].entries[k]);
        free(tables[i].entries);
        free(tables[i].tuples);
        free(tables[i].slots);
    }
}
