#include "net/xdp/program.h"

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>
#include <vector>

#include "net/xdp/frame.h"

#ifndef BPF_F_XDP_HAS_FRAGS  // Linux 5.18
#define BPF_F_XDP_HAS_FRAGS (1U << 5)
#endif

namespace netfold {
namespace {

// Of the map of ends.
struct EndKey {
    std::uint32_t address;  // as in the packet
    std::uint32_t port;     // likewise
};
struct EndValue {
    std::uint32_t socket, queue, longest;
};

int bpf(bpf_cmd command, bpf_attr &attributes) {
    return static_cast<int>(::syscall(SYS_bpf, command, &attributes, sizeof attributes));
}

template <class Pointer>
std::uint64_t address_of(const Pointer *pointer) {
    return reinterpret_cast<std::uint64_t>(pointer);
}

Descriptor made(int fd, const std::string &what) {
    if (fd >= 0) return Descriptor(fd);
    const int why = errno;
    throw std::system_error(why, std::generic_category(),
                            "NETFOLD_PATH=xdp: the kernel refuses " + what
                                + (why == EPERM ? ", as it does in user namespaces" : "")
                                + "; NETFOLD_PATH=udp needs no such thing");
}

Descriptor map(bpf_map_type type, std::uint32_t key_bytes, std::uint32_t value_bytes, std::uint32_t entries) {
    bpf_attr attributes{};
    attributes.map_type = type;
    attributes.key_size = key_bytes;
    attributes.value_size = value_bytes;
    attributes.max_entries = entries;
    return made(bpf(BPF_MAP_CREATE, attributes), "a BPF map");
}

void update(const Descriptor &map, const void *key, const void *value) {
    bpf_attr attributes{};
    attributes.map_fd = static_cast<std::uint32_t>(map.get());
    attributes.key = reinterpret_cast<std::uint64_t>(key);
    attributes.value = reinterpret_cast<std::uint64_t>(value);
    if (bpf(BPF_MAP_UPDATE_ELEM, attributes) != 0)
        throw std::system_error(errno, std::generic_category(), "an entry of a BPF map");
}

// That there is no such entry is fine.
void erase(const Descriptor &map, const void *key) {
    bpf_attr attributes{};
    attributes.map_fd = static_cast<std::uint32_t>(map.get());
    attributes.key = reinterpret_cast<std::uint64_t>(key);
    bpf(BPF_MAP_DELETE_ELEM, attributes);
}

// ---- the program ---------------------------------------------------------------------------------------------------

constexpr std::int16_t TO_PASS = 0;  // until it is known where that is

bpf_insn instruction(int code, int to, int from, int offset, std::int32_t value) {
    bpf_insn made{};
    made.code = static_cast<std::uint8_t>(code);
    made.dst_reg = static_cast<std::uint8_t>(to) & 0xf;
    made.src_reg = static_cast<std::uint8_t>(from) & 0xf;
    made.off = static_cast<std::int16_t>(offset);
    made.imm = value;
    return made;
}
bpf_insn load(int size, int to, int from, std::size_t offset) {
    return instruction(BPF_LDX | size | BPF_MEM, to, from, static_cast<int>(offset), 0);
}
bpf_insn store(int to, int offset, int from) { return instruction(BPF_STX | BPF_W | BPF_MEM, to, from, offset, 0); }
bpf_insn set(int to, std::int32_t value) { return instruction(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value); }
bpf_insn copy(int to, int from) { return instruction(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
bpf_insn add(int to, std::int32_t value) { return instruction(BPF_ALU64 | BPF_ADD, to, 0, 0, value); }
bpf_insn mask(int to, std::int32_t value) { return instruction(BPF_ALU64 | BPF_AND | BPF_K, to, 0, 0, value); }
bpf_insn from_network16(int to) { return instruction(BPF_ALU | BPF_END | BPF_TO_BE, to, 0, 0, 16); }
bpf_insn call(int helper) { return instruction(BPF_JMP | BPF_CALL, 0, 0, 0, helper); }
bpf_insn leave() { return instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0); }
bpf_insn pass_unless_equal(int left, std::int32_t value) {
    return instruction(BPF_JMP | BPF_JNE | BPF_K, left, 0, TO_PASS, value);
}
bpf_insn pass_if(int comparison, int left, int right) {
    return instruction(BPF_JMP | comparison | BPF_X, left, right, TO_PASS, 0);
}

// Only datagrams over IPv4 without options and not in fragments have a ring. One that is longer than its socket's
// packets is a bundle of several, which loopback passes whole: the kernel takes it apart.
std::vector<bpf_insn> instructions(int ends, int sockets) {
    enum { R0, R1, R2, R3, CONTEXT = BPF_REG_6, BYTES, QUEUE, FRAME = BPF_REG_10 };
    constexpr int KEY = -static_cast<int>(sizeof(EndKey));
    const auto address_of_map = [](int map) {
        return std::pair{instruction(BPF_DW | BPF_IMM, R1, BPF_PSEUDO_MAP_FD, 0, map), bpf_insn{}};
    };
    const auto [ends_low, ends_high] = address_of_map(ends);
    const auto [sockets_low, sockets_high] = address_of_map(sockets);
    std::vector<bpf_insn> code{
        load(BPF_W, QUEUE, R1, offsetof(xdp_md, rx_queue_index)),
        load(BPF_W, R2, R1, offsetof(xdp_md, data)),
        load(BPF_W, R3, R1, offsetof(xdp_md, data_end)),
        copy(R0, R2),
        add(R0, frame::HEADERS_BYTES),
        pass_if(BPF_JGT, R0, R3),
        load(BPF_H, R0, R2, frame::AT_ETHERTYPE),
        from_network16(R0),
        pass_unless_equal(R0, ETH_P_IP),
        load(BPF_B, R0, R2, frame::AT_IP),
        pass_unless_equal(R0, frame::IPV4_WITHOUT_OPTIONS),
        load(BPF_H, R0, R2, frame::AT_FRAGMENT),
        from_network16(R0),
        mask(R0, frame::MORE_FRAGMENTS | frame::FRAGMENT_OFFSET),
        pass_unless_equal(R0, 0),
        load(BPF_B, R0, R2, frame::AT_PROTOCOL),
        pass_unless_equal(R0, IPPROTO_UDP),
        load(BPF_H, BYTES, R2, frame::AT_IP_BYTES),
        from_network16(BYTES),
        load(BPF_W, R0, R2, frame::AT_DESTINATION),
        store(FRAME, KEY + static_cast<int>(offsetof(EndKey, address)), R0),
        load(BPF_H, R0, R2, frame::AT_DESTINATION_PORT),
        store(FRAME, KEY + static_cast<int>(offsetof(EndKey, port)), R0),
        ends_low,
        ends_high,
        copy(R2, FRAME),
        add(R2, KEY),
        call(BPF_FUNC_map_lookup_elem),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, R0, 0, TO_PASS, 0),
        load(BPF_W, R1, R0, offsetof(EndValue, longest)),
        pass_if(BPF_JGT, BYTES, R1),
        load(BPF_W, R1, R0, offsetof(EndValue, queue)),
        pass_if(BPF_JNE, QUEUE, R1),
        load(BPF_W, R2, R0, offsetof(EndValue, socket)),
        sockets_low,
        sockets_high,
        set(R3, XDP_PASS),  // if that socket is just being closed
        call(BPF_FUNC_redirect_map),
        leave(),
    };
    const auto pass = static_cast<int>(code.size());
    for (int i = 0; i < pass; i++) {
        bpf_insn &each = code[static_cast<std::size_t>(i)];
        const bool jumps =
            BPF_CLASS(each.code) == BPF_JMP && BPF_OP(each.code) != BPF_CALL && BPF_OP(each.code) != BPF_EXIT;
        if (jumps) each.off = static_cast<std::int16_t>(pass - i - 1);
    }
    code.push_back(set(R0, XDP_PASS));
    code.push_back(leave());
    return code;
}

Descriptor loaded(const std::vector<bpf_insn> &code) {
    const char license[] = "Apache-2.0";
    bpf_attr attributes{};
    attributes.prog_type = BPF_PROG_TYPE_XDP;
    attributes.expected_attach_type = BPF_XDP;
    attributes.insns = address_of(code.data());
    attributes.insn_cnt = static_cast<std::uint32_t>(code.size());
    attributes.license = address_of(license);
    attributes.prog_flags = BPF_F_XDP_HAS_FRAGS;
    int fd = bpf(BPF_PROG_LOAD, attributes);
    if (fd < 0 && errno == EINVAL) {  // A kernel that knows no frames of several parts.
        attributes.prog_flags = 0;
        fd = bpf(BPF_PROG_LOAD, attributes);
    }
    return made(fd, "an XDP program");
}

Descriptor attached(const Descriptor &program, int interface, const std::string &name) {
    bpf_attr attributes{};
    attributes.link_create.prog_fd = static_cast<std::uint32_t>(program.get());
    attributes.link_create.target_ifindex = static_cast<std::uint32_t>(interface);
    attributes.link_create.attach_type = BPF_XDP;
    attributes.link_create.flags = XDP_FLAGS_DRV_MODE;
    int fd = bpf(BPF_LINK_CREATE, attributes);
    if (fd < 0 && errno != EBUSY && errno != EEXIST) {
        attributes.link_create.flags = XDP_FLAGS_SKB_MODE;
        fd = bpf(BPF_LINK_CREATE, attributes);
    }
    if (fd < 0 && (errno == EBUSY || errno == EEXIST))
        throw std::system_error(EBUSY, std::generic_category(),
                                "NETFOLD_PATH=xdp: " + name
                                    + " has another XDP program, of which there is one (ip link show " + name
                                    + "); NETFOLD_PATH=udp needs none");
    return made(fd, "an XDP program at " + name);
}

}  // namespace

Descriptor &Descriptor::operator=(Descriptor &&other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
}

void Descriptor::close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

XdpProgram::XdpProgram(int interface, const std::string &name, unsigned queue, unsigned sockets)
    : queue_(queue),
      sockets_(map(BPF_MAP_TYPE_XSKMAP, sizeof(std::uint32_t), sizeof(std::uint32_t), sockets)),
      ends_(map(BPF_MAP_TYPE_HASH, sizeof(EndKey), sizeof(EndValue), sockets)),
      program_(loaded(instructions(ends_.get(), sockets_.get()))),
      link_(attached(program_, interface, name)) {}

void XdpProgram::put_socket(unsigned number, int fd) { update(sockets_, &number, &fd); }

void XdpProgram::remove_socket(unsigned number) { erase(sockets_, &number); }

void XdpProgram::direct(const sockaddr_in &to, unsigned number, std::size_t longest) {
    const EndKey key{to.sin_addr.s_addr, to.sin_port};
    const EndValue value{number, queue_, static_cast<std::uint32_t>(longest)};
    update(ends_, &key, &value);
}

void XdpProgram::leave(const sockaddr_in &to) {
    const EndKey key{to.sin_addr.s_addr, to.sin_port};
    erase(ends_, &key);
}

}  // namespace netfold
