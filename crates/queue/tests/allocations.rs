//! What a message costs in allocations, counted on the thread that calls.

use std::path::PathBuf;
use std::time::Duration;

use allocation_counter::measure;
use mainstem_queue::{Config, Durability, Queue, Queues, Settings};

/// Times that each thing is done.
const TIMES: u64 = 1_000;
/// Allocations besides, of all of them together: what grows now and then.
const BESIDES: u64 = TIMES / 4;

fn with_queue(name: &str, test: impl FnOnce(&Queue)) {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let directory = root.join(format!("allocations-{name}-{}", std::process::id()));
    {
        let queues = Queues::open(&directory).unwrap();
        let config = Config { dedup_window_ms: 0, ..Config::default() };
        let queue = queues.queue("jobs", Settings { config, durability: Durability::Os }).unwrap();
        test(&queue);
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Allocations of something that is done many times, for each time.
fn count(mut thing: impl FnMut()) -> u64 {
    let mut times = || (0..TIMES).for_each(|_| thing());
    // The buffers have grown by then.
    times();
    measure(times).count_total.saturating_sub(BESIDES).div_ceil(TIMES)
}

#[test]
fn a_message_is_put_in_with_one_allocation() {
    with_queue("enqueue", |queue| {
        let count = count(|| {
            queue.enqueue(&[b'x'; 100]).unwrap();
        });
        assert!(count <= 1, "{count}");
    });
}

#[test]
fn a_batch_is_put_in_with_as_many_as_a_message() {
    with_queue("batch", |queue| {
        let count = count(|| {
            queue.enqueue_batch([&[b'x'; 100]; 10]).unwrap();
        });
        assert!(count <= 1, "{count}");
    });
}

#[test]
fn a_message_is_put_in_received_and_acknowledged_with_two() {
    with_queue("turn", |queue| {
        let count = count(|| {
            queue.enqueue(&[b'x'; 100]).unwrap();
            let taken = queue.receive(1, Duration::from_secs(1)).unwrap();
            assert_eq!(taken.len(), 1);
            queue.ack_all(taken).unwrap();
        });
        assert!(count <= 2, "{count}");
    });
}
