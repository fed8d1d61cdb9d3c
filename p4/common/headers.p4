// The headers around the protocol's own.
#ifndef NETFOLD_HEADERS_P4
#define NETFOLD_HEADERS_P4

#include "sizes.p4"
#include "repeat.p4"
#include "protocol.p4"

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP  = 0x0806;
const bit<16> ETHERTYPE_VLAN = 0x8100;          // IEEE 802.1Q: a VLAN or priority tag
const bit<16> ETHERTYPE_SERVICE_VLAN = 0x88a8;  // IEEE 802.1ad
const bit<8>  IP_PROTOCOL_UDP = 17;
const bit<3>  MORE_FRAGMENTS  = 1;
const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY   = 2;

header ethernet_t {
    bit<48> dst_mac;
    bit<48> src_mac;
    bit<16> ether_type;
}

header arp_t {
    bit<16> hardware_type;
    bit<16> protocol_type;
    bit<8>  hardware_bytes;
    bit<8>  protocol_bytes;
    bit<16> operation;
    bit<48> sender_mac;
    bit<32> sender_address;
    bit<48> target_mac;
    bit<32> target_address;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  diffserv;
    bit<16> total_bytes;
    bit<16> identification;
    bit<3>  flags;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src_addr;
    bit<32> dst_addr;
}

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> datagram_bytes;
    bit<16> checksum;
}

#define FIELD(i) bit<32> e##i;
header vector_t {
    FOR_EACH_ELEMENT(FIELD)
}
#undef FIELD

// The UDP length, and what IPv4 adds to it.
const bit<16> DATAGRAM_BYTES = 8 + 32 + 4 * ELEMENTS;
const bit<16> IPV4_BYTES     = 20;

struct headers_t {
    ethernet_t ethernet;
    arp_t      arp;
    ipv4_t     ipv4;
    udp_t      udp;
    netfold_t  netfold;
    vector_t   vector;
}

#endif
