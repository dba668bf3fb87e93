//! On disks that fail.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainstem_disk::fault::FaultFs;
use mainstem_log::Durability;
use mainstem_queue::Config;

use crate::common::Queues;
use crate::queue::Queue;
use crate::settings::Settings;

const SEEDS: u64 = 20;

fn open(fs: &FaultFs) -> Queues {
    Queues::on(Arc::new(fs.clone()), PathBuf::from("/log"), None).unwrap()
}

fn jobs(queues: &Queues, durability: Durability) -> Queue {
    queues.queue("jobs", Settings { config: Config::default(), durability }).unwrap()
}

fn values(queue: &Queue) -> Vec<Vec<u8>> {
    let taken = queue.receive(99, Duration::ZERO).unwrap();
    taken.iter().map(|delivery| delivery.value().to_vec()).collect()
}

#[test]
fn durability_that_is_set_anew_holds_for_messages_and_verdicts() {
    for seed in 0..SEEDS {
        let fs = FaultFs::new(seed);
        let queues = open(&fs);
        let lax = jobs(&queues, Durability::Os);
        lax.enqueue("lax").unwrap();
        let strict = jobs(&queues, Durability::Fsync);
        strict.enqueue_batch(["done", "kept"]).unwrap();
        let taken = lax.receive(9, Duration::ZERO).unwrap();
        strict.ack_all(taken.into_iter().filter(|delivery| delivery.value() != b"kept")).unwrap();
        let found = fs.survivor(seed);
        assert_eq!(values(&jobs(&open(&found), Durability::Fsync)), [b"kept"], "seed {seed}");
    }
}
