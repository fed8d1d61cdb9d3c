"""p4.tmp.P4DeviceConfig, as protoc would make it. Source: proto/p4/tmp/p4config.proto of p4lang/PI."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto

_file = descriptor_pb2.FileDescriptorProto(name="p4/tmp/p4config.proto", package="p4.tmp", syntax="proto3")
_config = _file.message_type.add(name="P4DeviceConfig")
_config.nested_type.add(name="Extras")  # empty: the tutorials set none
_config.field.add(name="reassign", number=1, type=FIELD.TYPE_BOOL, label=FIELD.LABEL_OPTIONAL)
_config.field.add(
    name="extras",
    number=2,
    type=FIELD.TYPE_MESSAGE,
    type_name=".p4.tmp.P4DeviceConfig.Extras",
    label=FIELD.LABEL_OPTIONAL,
)
_config.field.add(name="device_data", number=3, type=FIELD.TYPE_BYTES, label=FIELD.LABEL_OPTIONAL)
_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file)
P4DeviceConfig = message_factory.MessageFactory(_pool).GetPrototype(
    _pool.FindMessageTypeByName("p4.tmp.P4DeviceConfig")
)
