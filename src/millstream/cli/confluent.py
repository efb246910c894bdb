"""The names of confluent-kafka that the commands use, imported from one place.

confluent-kafka does not declare its administrative names as exported; this module is where that is accepted. It takes
a twentieth of a second to import, so commands import it when they need it.
"""

# pyright: reportPrivateImportUsage=false

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
    admin,
)

AdminClient = admin.AdminClient
ClusterMetadata = admin.ClusterMetadata
AlterConfigOpType = admin.AlterConfigOpType
ConfigEntry = admin.ConfigEntry
ConfigResource = admin.ConfigResource
ConsumerGroupDescription = admin.ConsumerGroupDescription
NewPartitions = admin.NewPartitions
NewTopic = admin.NewTopic
OffsetSpec = admin.OffsetSpec
ResourceType = admin.ResourceType

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "AdminClient",
    "AlterConfigOpType",
    "ClusterMetadata",
    "ConfigEntry",
    "ConfigResource",
    "Consumer",
    "ConsumerGroupDescription",
    "ConsumerGroupState",
    "ConsumerGroupTopicPartitions",
    "ConsumerGroupType",
    "KafkaError",
    "KafkaException",
    "Message",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "Producer",
    "ResourceType",
    "TopicCollection",
    "TopicPartition",
]
