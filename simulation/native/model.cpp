#include "model.h"

#include <utility>

namespace netfold::simulation {

Model::Model(std::vector<Link> the_links, std::vector<Node> the_nodes, std::vector<Program> the_programs,
             std::vector<Tensor> the_tensors, std::vector<Job> the_jobs, Settings the_settings)
    : links(std::move(the_links)),
      nodes(std::move(the_nodes)),
      programs(std::move(the_programs)),
      tensors(std::move(the_tensors)),
      jobs(std::move(the_jobs)),
      settings(the_settings),
      depth(nodes.size()),
      tensors_of_job(jobs.size()),
      index_in_job(tensors.size()),
      elements_with_parts(tensors.size()) {
    for (std::size_t n = 0; n < nodes.size(); n++)
        for (std::int32_t p = nodes[n].parent; p >= 0; p = nodes[p].parent) depth[n]++;
    for (Program &p : programs) {
        p.summed_from.assign(p.pieces, 0);
        for (std::size_t n = 0; n + 1 < p.begin.size(); n++)
            for (std::int32_t o = p.begin[n]; o < p.begin[n + 1]; o++)
                p.summed_from[p.ops[o].piece] += opens(p, static_cast<std::int32_t>(n), p.ops[o]);
        p.sums = sums_of(p);
        p.chunks_from = sources_of_chunks(p);
    }
    for (std::size_t t = 0; t < tensors.size(); t++) {
        auto &of = tensors_of_job[tensors[t].job];
        index_in_job[t] = static_cast<std::int32_t>(of.size());
        of.push_back(static_cast<std::int32_t>(t));
        elements_with_parts[tensors[t].first] += tensors[t].elements;
    }
}

std::vector<std::vector<Carrying>> Model::sums_of(const Program &p) const {
    std::vector<std::vector<Carrying>> out(p.pieces);
    for (std::size_t n = 0; n + 1 < p.begin.size(); n++)
        for (std::int32_t o = p.begin[n]; o < p.begin[n + 1]; o++) {
            const Op &op = p.ops[o];
            const bool carries = op.kind == Kind::send || op.kind == Kind::multicast;
            const auto node = static_cast<std::int32_t>(n);
            if (carries && p.summed_from[op.piece] > 0 && !opens(p, node, op)) out[op.piece].push_back({node, o});
        }
    return out;
}

std::vector<std::int32_t> Model::sources_of_chunks(const Program &p) const {
    std::vector<std::int32_t> sent_by(p.ops.size(), -1), out(p.ops.size(), -1);
    const auto each = [&p](const auto &operation) {
        for (std::size_t n = 0; n + 1 < p.begin.size(); n++)
            for (std::int32_t o = p.begin[n]; o < p.begin[n + 1]; o++) operation(static_cast<std::int32_t>(n), o);
    };
    each([&](std::int32_t n, std::int32_t o) {
        if (p.ops[o].kind == Kind::send && !nodes[p.nodes[n]].is_switch) sent_by[p.ops[o].target_op] = n;
    });
    each([&](std::int32_t, std::int32_t o) {
        const Op &op = p.ops[o];
        if (op.kind == Kind::multicast && op.source >= 0) out[o] = sent_by[op.source];
    });
    return out;
}

std::uint64_t Model::piece_bytes(const Tensor &tensor, std::int32_t piece) const {
    const Program &p = programs[tensor.program];
    if (!p.piece_bytes.empty()) return p.piece_bytes[piece];
    const std::int64_t pieces = p.pieces;
    return static_cast<std::uint64_t>(tensor.elements / pieces + (piece < tensor.elements % pieces))
           * static_cast<std::uint64_t>(tensor.element_bytes);
}

bool Model::opens(const Program &program, std::int32_t node, const Op &op) const {
    return op.kind == Kind::send && !nodes[program.nodes[node]].is_switch && program.ops[op.target_op].aggregate;
}

std::int32_t Model::toward(std::int32_t from, std::int32_t to) const {
    std::int32_t at = to;
    while (depth[at] > depth[from] + 1) at = nodes[at].parent;
    if (depth[at] == depth[from] + 1 && nodes[at].parent == from) return at;
    return nodes[from].parent;
}

}  // namespace netfold::simulation
