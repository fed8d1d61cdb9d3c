// Has the engines sum and multicast over loopback, for test_sanitizers.py: everything that callers may do while threads
// are at work. Ends with 1 and a line when what comes out is wrong; what else is wrong the sanitizers say.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "aggregation/engine.h"
#include "aggregation/scatter.h"
#include "aggregation/server.h"
#include "multicast/multicaster.h"
#include "toy_switch.h"

using namespace netfold;

namespace {

constexpr int WORLD = 3, SLOTS = 16, ELEMENTS = 64;
constexpr double SOON_S = 30;
constexpr std::uint16_t JOB = 7;
constexpr unsigned LOSE_EVERY = 40;

void expect(bool holds, const char *what) {
    if (holds) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::_Exit(1);
}

void on_every_rank(const std::function<void(int)> &work) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < WORLD; rank++) threads.emplace_back(work, rank);
    for (std::thread &each : threads) each.join();
}

// Until the network has seen so many packets in all. Who counts from where it was before the work began waits for none
// that have passed meanwhile.
void wait_until(const ToySwitch &network, std::uint64_t packets) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::duration<double>(SOON_S);
    while (network.seen() < packets) {
        expect(std::chrono::steady_clock::now() < give_up, "packets pass in time");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// Of a secret that everybody knows: one number is as good as another here.
std::shared_ptr<const CheckWords> check_words(std::uint32_t prime, std::uint32_t ranks) {
    std::vector<std::uint32_t> elements(ELEMENTS), codes(CheckWords::CODES), terms(ranks);
    for (std::uint32_t rank = 0; rank < ranks; rank++) terms[rank] = prime / 3 + rank;
    for (std::uint32_t i = 0; i < ELEMENTS; i++) elements[i] = prime / 2 + 17 * i;
    for (std::uint32_t i = 0; i < codes.size(); i++) codes[i] = (i << CheckWords::CODE_SHIFT) + i;
    return std::make_shared<const CheckWords>(prime, CheckWords::Fields{3, 5, 7, 11}, std::move(elements),
                                              std::move(terms), std::move(codes));
}

std::shared_ptr<const CheckWords> of_sums() { return check_words(1431655751, WORLD); }
std::shared_ptr<const CheckWords> of_chunks() { return check_words(4294967291, 1); }

Header header_of(std::uint32_t epoch) {
    Header header;
    header.job = JOB;
    header.epoch = epoch;
    header.element_count = ELEMENTS;
    return header;
}

// The ranks of a job, with two lanes each.
struct Ranks {
    std::vector<std::unique_ptr<Engine>> engines;

    Ranks() {
        for (int rank = 0; rank < WORLD; rank++)
            engines.push_back(std::make_unique<Engine>("127.0.0.1", std::vector<std::uint16_t>{0, 0}));
    }

    void configure(const ToySwitch &network, std::uint32_t epoch) {
        for (std::size_t rank = 0; rank < engines.size(); rank++)
            engines[rank]->configure({network.end(),
                                      JOB,
                                      static_cast<std::uint16_t>(rank),
                                      epoch,
                                      WORLD,
                                      ELEMENTS,
                                      0,
                                      of_sums(),
                                      {{0, SLOTS, {}}, {SLOTS, SLOTS, {}}}});
    }

    // int32, whose sum shows at once whether it is right; beside them floats.
    void sum(std::size_t count, int times) {
        on_every_rank([&](int rank) {
            Engine &engine = *engines[static_cast<std::size_t>(rank)];
            std::vector<std::vector<std::int32_t>> whole(static_cast<std::size_t>(times));
            std::vector<std::vector<float>> broken(whole.size());
            std::vector<std::uint64_t> tickets;
            for (std::size_t i = 0; i < whole.size(); i++) {
                whole[i].assign(count + i, rank + 1);
                broken[i].assign(count / 2, 0.5F);
                tickets.push_back(engine.submit(DType::int32, whole[i].data(), whole[i].size(), false));
                tickets.push_back(engine.submit(DType::float32, broken[i].data(), broken[i].size(), true));
            }
            for (const std::uint64_t ticket : tickets)
                expect(engine.wait(ticket, SOON_S), "a tensor is summed in time");
            for (const auto &values : whole)
                for (const std::int32_t value : values) expect(value == WORLD * (WORLD + 1) / 2, "a sum is right");
            for (const auto &values : broken)
                for (const float value : values) expect(value == 0.5F, "an average is right");
        });
    }
};

void sum_while_others_look() {
    ToySwitch network(WORLD, LOSE_EVERY);
    Ranks ranks;
    ranks.configure(network, 1);
    std::atomic<bool> over{false};
    std::thread looks([&] {
        std::uint64_t packets = 0;
        while (!over) {
            for (const auto &engine : ranks.engines)
                packets +=
                    engine->stats().packets_sent + engine->position() + (engine->silent() > 1e9) + engine->halted();
            std::this_thread::yield();
        }
        expect(packets > 0, "something was counted");
    });
    ranks.sum(5000, 4);
    over = true;
    looks.join();
}

void sum_by_a_server() {
    ToySwitch network(WORLD, LOSE_EVERY);
    Server server("127.0.0.1", 0);
    network.send_sums_to({server.address(), server.port()});
    server.configure(network.end(), header_of(1), {0, 2 * SLOTS, {}}, WORLD, {}, of_sums());
    Ranks ranks;
    ranks.configure(network, 1);
    ranks.sum(3000, 2);
    std::thread again([&] { server.halt(); });
    server.halt();
    again.join();
    expect(server.stats().packets_sent > 0, "the server answered");
}

// Halted in the middle, what one rank lacks taken from another, and a new life.
void halt_and_recover() {
    ToySwitch network(WORLD, LOSE_EVERY);
    Ranks ranks;
    std::vector<std::vector<float>> tensors(WORLD, std::vector<float>(200000, 1.0F));
    for (std::uint32_t epoch = 1; epoch <= 3; epoch++) {
        const std::uint64_t before = network.seen();
        ranks.configure(network, epoch);
        for (std::size_t rank = 0; rank < WORLD; rank++)
            ranks.engines[rank]->submit(DType::float32, tensors[rank].data(), tensors[rank].size(), true);
        wait_until(network, before + 300);
        on_every_rank([&](int rank) { ranks.engines[static_cast<std::size_t>(rank)]->halt(); });
        const std::size_t slots = ranks.engines[0]->slots();
        std::vector<std::int64_t> positions(slots);
        std::vector<std::uint32_t> words(slots * (1 + ELEMENTS));
        ranks.engines[0]->retained(positions.data(), words.data());
        for (std::size_t rank = 1; rank < WORLD; rank++) ranks.engines[rank]->restore(positions.data(), words.data());
        for (const auto &engine : ranks.engines) expect(engine->unfinished().size() == 1, "one tensor is under way");
    }
    ranks.configure(network, 9);
    ranks.sum(1000, 1);
}

void cancel_a_wait() {
    ToySwitch network(WORLD, 0);
    Ranks ranks;
    ranks.configure(network, 1);
    std::vector<float> tensor(1000, 1.0F);
    const std::uint64_t ticket = ranks.engines[0]->submit(DType::float32, tensor.data(), tensor.size(), false);
    std::thread other([&] { ranks.engines[0]->cancel(); });
    try {
        ranks.engines[0]->wait(ticket, SOON_S);
        expect(false, "a cancelled wait raises");
    } catch (const Cancelled &) {
    }
    other.join();
    ranks.engines.clear();
}

// Engines that end with tensors under way, whose memory is gone right after them.
void drop_under_way() {
    ToySwitch network(WORLD, LOSE_EVERY);
    for (std::uint32_t epoch = 1; epoch <= 3; epoch++) {
        std::vector<std::vector<float>> tensors(WORLD, std::vector<float>(200000, 1.0F));
        Ranks ranks;
        const std::uint64_t before = network.seen();
        ranks.configure(network, epoch);
        for (std::size_t rank = 0; rank < WORLD; rank++)
            ranks.engines[rank]->submit(DType::float32, tensors[rank].data(), tensors[rank].size(), true);
        wait_until(network, before + 200);
    }
}

struct Owners {
    std::vector<std::unique_ptr<Scatter>> scatters;
    std::vector<std::vector<End>> ends;

    explicit Owners(ToySwitch &network) {
        std::vector<End> owners;
        for (int rank = 0; rank < WORLD; rank++) {
            scatters.push_back(std::make_unique<Scatter>("127.0.0.1", rank, WORLD));
            ends.emplace_back();
            for (const std::uint16_t port : scatters.back()->ports()) ends.back().push_back({"127.0.0.1", port});
            owners.push_back(ends.back()[static_cast<std::size_t>(rank)]);
        }
        network.send_shards_to(owners, SLOTS);
    }

    void configure(const ToySwitch &network, std::uint32_t epoch) {
        std::vector<Pool> pools;
        for (std::uint16_t first = 0; first < WORLD * SLOTS; first += SLOTS) pools.push_back({first, SLOTS, {}});
        for (std::size_t rank = 0; rank < scatters.size(); rank++)
            scatters[rank]->configure(
                {network.end(), JOB, static_cast<std::uint16_t>(rank), epoch, WORLD, ELEMENTS, 0, of_sums(), pools},
                ends);
    }
};

// Each rank's shard, while others look; then halted in the middle, a new life, and the end with tensors under way.
void scatter() {
    ToySwitch network(WORLD, LOSE_EVERY);
    std::vector<std::vector<float>> large(WORLD, std::vector<float>(WORLD * 50000, 1.0F));
    std::vector<std::vector<float>> sums(WORLD, std::vector<float>(50000));
    Owners ranks(network);
    for (std::uint32_t epoch = 1; epoch <= 3; epoch++) {
        ranks.configure(network, epoch);
        on_every_rank([&](int rank) {
            Scatter &mine = *ranks.scatters[static_cast<std::size_t>(rank)];
            std::vector<std::int32_t> values(WORLD * 3000, rank + 1), others(3000);
            std::vector<std::uint64_t> tickets;
            for (int i = 0; i < 3; i++)
                tickets.push_back(mine.submit(DType::int32, values.data(), others.size(), false, others.data()));
            for (const std::uint64_t ticket : tickets) {
                while (!mine.wait(ticket, 0.001))
                    expect(mine.stats().packets_sent + mine.position() + (mine.silent() < 1e9) > 0, "something counts");
            }
            for (const std::int32_t value : others)
                expect(value == WORLD * (WORLD + 1) / 2 - (rank + 1), "a shard's sum is right");
        });
        const std::uint64_t before = network.seen();
        for (std::size_t rank = 0; rank < WORLD; rank++)
            ranks.scatters[rank]->submit(DType::float32, large[rank].data(), sums[rank].size(), true,
                                         sums[rank].data());
        wait_until(network, before + 300);
        if (epoch < 3) on_every_rank([&](int rank) { ranks.scatters[static_cast<std::size_t>(rank)]->halt(); });
    }
    ranks.scatters.clear();
}

struct Hosts {
    Multicaster source{"127.0.0.1", 0}, one{"127.0.0.1", 0}, other{"127.0.0.1", 0};

    static End end_of(const Multicaster &host) { return {"127.0.0.1", host.port()}; }

    void configure(const ToySwitch &network, std::uint32_t epoch) {
        const Pool pool{0, SLOTS, {}};
        const End at_source = end_of(source);
        source.configure(network.end(), header_of(epoch), 0, {{pool, true, {1, 2}, {end_of(one), end_of(other)}}},
                         of_chunks());
        one.configure(network.end(), header_of(epoch), 1, {{pool, false, {}, {at_source}}}, of_chunks());
        other.configure(network.end(), header_of(epoch), 2, {{pool, false, {}, {at_source}}}, of_chunks());
    }
};

void multicast() {
    ToySwitch network(1, LOSE_EVERY);
    Hosts hosts;
    network.multicast(Hosts::end_of(hosts.source), {Hosts::end_of(hosts.one), Hosts::end_of(hosts.other)});
    for (std::uint32_t epoch = 1; epoch <= 2; epoch++) {
        hosts.configure(network, epoch);
        std::vector<std::uint8_t> sent(100000), to_one(sent.size()), to_other(sent.size());
        for (std::size_t i = 0; i < sent.size(); i++) sent[i] = static_cast<std::uint8_t>(i * 7 + epoch);
        const std::uint64_t leaving = hosts.source.send(0, sent.data(), sent.size());
        std::thread waits([&] {
            expect(hosts.other.wait(hosts.other.receive(0, to_other.data(), to_other.size()), SOON_S),
                   "received in time");
        });
        expect(hosts.one.wait(hosts.one.receive(0, to_one.data(), to_one.size()), SOON_S), "received in time");
        expect(hosts.source.wait(leaving, SOON_S), "sent in time");
        waits.join();
        expect(sent == to_one && sent == to_other, "what was sent is received");
        expect(hosts.source.granted(0) <= hosts.source.position(), "nothing is granted before it was sent");
        std::thread again([&] { hosts.one.halt(); });
        hosts.one.halt();
        again.join();
    }
}

void drop_multicast_under_way() {
    ToySwitch network(1, LOSE_EVERY);
    std::vector<std::uint8_t> sent(4000000), received(sent.size());
    Hosts hosts;
    network.multicast(Hosts::end_of(hosts.source), {Hosts::end_of(hosts.one), Hosts::end_of(hosts.other)});
    hosts.configure(network, 1);
    hosts.source.send(0, sent.data(), sent.size());
    hosts.one.receive(0, received.data(), received.size());
    wait_until(network, 10);
}

}  // namespace

int main() {
    sum_while_others_look();
    sum_by_a_server();
    halt_and_recover();
    cancel_a_wait();
    drop_under_way();
    scatter();
    multicast();
    drop_multicast_under_way();
}
