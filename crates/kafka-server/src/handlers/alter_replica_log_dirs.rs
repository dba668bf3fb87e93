//! `AlterReplicaLogDirs`, versions 1 to 2: moves replicas between log directories (KIP-113). There is one directory,
//! which already has all of them.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_replica_log_dirs::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult, AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: AlterReplicaLogDirsRequest,
) {
    let mut response = AlterReplicaLogDirsResponse::default();
    let denied = call.check_cluster(Action::Alter).err();
    for dir in &request.dirs {
        let is_here = dir.path == shard.env.shared().config.log_dir;
        for topic in &dir.topics {
            let known = shard.env.catalogue().topic(&topic.name);
            let partition = |index: &i32| {
                let code = match known.and_then(|known| known.store_id(*index)) {
                    _ if denied.is_some() => ErrorCode::ClusterAuthorizationFailed,
                    _ if !is_here => ErrorCode::LogDirNotFound,
                    None => ErrorCode::UnknownTopicOrPartition,
                    Some(_) => ErrorCode::None,
                };
                AlterReplicaLogDirPartitionResult { partition_index: *index, error_code: code as i16 }
            };
            let partitions = topic.partitions.iter().map(partition).collect();
            response
                .results
                .push(AlterReplicaLogDirTopicResult { topic_name: topic.name.clone(), partitions });
        }
    }
    shard.reply::<AlterReplicaLogDirsRequest>(io, &call, &response);
}
