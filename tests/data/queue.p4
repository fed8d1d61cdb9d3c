// What v1model says about the queue of the port that a packet leaves by, written into the packet.
#include <core.p4>
#include <v1model.p4>

header queue_t {
    bit<32> enq_timestamp;
    bit<32> enq_qdepth;
    bit<32> deq_timedelta;
    bit<32> deq_qdepth;
}
struct headers_t { queue_t queue; }
struct metadata_t { }

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.queue);
        transition accept;
    }
}
control check(inout headers_t hdr, inout metadata_t meta) { apply { } }
control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { standard_metadata.egress_spec = 2; }
}
control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        hdr.queue.enq_timestamp = standard_metadata.enq_timestamp;
        hdr.queue.enq_qdepth = (bit<32>) standard_metadata.enq_qdepth;
        hdr.queue.deq_timedelta = standard_metadata.deq_timedelta;
        hdr.queue.deq_qdepth = (bit<32>) standard_metadata.deq_qdepth;
    }
}
control update(inout headers_t hdr, inout metadata_t meta) { apply { } }
control deparse(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(parse(), check(), ingress(), egress(), update(), deparse()) main;
