// Sums of one host's ranks in memory that they share. A tensor goes in parts: while a rank writes one, it adds its
// share of the part before, and reads the sums of the one before that, so that the ranks meet once for each part. They
// meet once for a small tensor, too: each rank adds all of it. In a broadcast rank 0 writes a part while the others
// read the one before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace netfold {

class SharedSum {
public:
    enum class Type : std::uint32_t { float32, int32 };
    // A reduce leaves the sum on rank 0, and whatever it likes on the others.
    enum class Way : std::uint32_t { sum, average, reduce, broadcast };

    // What a rank does with which tensor.
    struct Told {
        std::uint64_t count = 0;
        Type type = Type::float32;
        Way way = Way::sum;

        bool operator==(const Told &) const = default;
    };

    // Bytes of the memory, which must be zeros before the first rank has it.
    static std::size_t bytes(int ranks, std::size_t part_bytes);

    // `memory` is aligned to 64 bytes, and outlives this. `spins`: a rank that waits looks again for a while before it
    // sleeps. Throws std::invalid_argument for an impossible place.
    SharedSum(std::uint8_t *memory, int rank, int ranks, std::size_t part_bytes, bool spins);

    // Begins to sum a tensor, in place, in the ranks' order; an average is divided by their number. `note`: what this
    // rank has to tell the others about it. Throws std::logic_error while one is under way.
    void begin(const Told &told, void *x, std::uint32_t note = 0);
    // Goes on until it is done, or for so long without another rank's progress; returns whether it is done. It never
    // is if the ranks sum different tensors: nothing is summed then, and they cannot go on.
    bool go_on(std::int64_t patience_ns);

    // Rank 0's, of the last tensor that is done.
    std::uint32_t note() const { return note_; }
    // What each rank does, if that differs.
    std::vector<Told> differing() const { return differing_; }
    // How often the ranks have met.
    std::uint32_t steps() const { return steps_; }
    // Ranks that this one waits for.
    std::vector<int> missing() const;
    // Ranks that have left.
    std::vector<int> departed() const;
    void leave();
    // A rank that makes the others wait says that it will come; and how often each has.
    void beat();
    std::vector<std::uint32_t> beats() const;

    // Time until sums were there, and from sums to tensors.
    std::int64_t summing_ns() const { return summing_ns_; }
    std::int64_t reading_ns() const { return reading_ns_; }

private:
    static constexpr int BUFFERS = 2;  // for what is under way

    // What a rank tells the others, on a cache line of its own.
    struct alignas(64) Place {
        std::atomic<std::uint32_t> steps;    // that it has made; wraps
        std::atomic<std::uint32_t> waiting;  // whether it may sleep
        std::atomic<std::uint32_t> left;
        std::atomic<std::uint32_t> beats;
        // Of this tensor, and of the one before, which another rank may be looking at.
        Told told[BUFFERS];
        std::uint32_t note[BUFFERS];
    };
    struct Range {
        std::size_t first, size;
    };

    void step();
    void write(std::size_t part);
    void write_all();
    void finish_all();
    void add(std::size_t part);
    void read(std::size_t part);
    void read_first(std::size_t part);
    bool reads() const { return told_.way != Way::reduce || rank_ == 0; }
    // Adds `size` elements of each rank, which are at from(rank).
    template <class From>
    void add_values(const From &from, std::uint8_t *total, std::size_t size);
    template <class T, class From>
    void add_typed(const From &from, std::uint8_t *to, std::size_t size);
    // Have all told the same? Only between the first meeting of a tensor and the second.
    bool agree();
    void arrive();
    bool meet(std::int64_t patience_ns);
    bool is_behind(int other) const;
    Range share_of(std::size_t part, int rank) const;
    std::uint8_t *values(std::size_t part, std::size_t element) const;
    std::uint8_t *written(std::size_t part, int by) const;
    std::uint8_t *sums(std::size_t part) const { return written(part, ranks_); }
    std::size_t size_of(std::size_t part) const;

    Place *places_;
    std::uint8_t *areas_;
    int rank_, ranks_;
    std::size_t part_bytes_;
    bool spins_;

    Told told_;
    std::uint8_t *x_ = nullptr;
    std::size_t parts_ = 0;
    std::size_t next_ = 0, last_ = 0;  // steps of this tensor
    std::size_t base_ = 0;             // parts of the tensors before it
    std::uint32_t tensors_ = 0;
    bool under_way_ = false, arrived_ = false, is_small_ = false;
    std::vector<Told> differing_;
    std::uint32_t steps_ = 0, note_ = 0;
    std::int64_t summing_ns_ = 0, reading_ns_ = 0;
};

}  // namespace netfold
