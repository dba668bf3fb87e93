//! What a work queue in process costs, on the real log: `cargo xtask bench queues`.
//!
//! Each row is measured in rounds. The medians are printed: wall time, and CPU time of the calling thread, which is
//! more reliable on a busy machine. `tests/allocations.rs` counts allocations separately, since counting takes time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mainstem_queue::{Config, Delivery, Durability, Queue, Queues, Settings};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 5;
const MESSAGES: u32 = 100_000;
const BATCH: u32 = 100;
const VALUE_BYTES: usize = 100;
const VALUE: &[u8] = &[b'x'; VALUE_BYTES];

/// Measures something with a queue that nobody else uses.
type Row = fn(&Path);

fn main() {
    let root =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-queues-{}", std::process::id()));
    println!("work queue in process, {ROUNDS} rounds, {VALUE_BYTES} bytes a message, page-cache durability");
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let rows: [(&str, Row); 4] =
        [("enqueue", enqueue), ("post", post), ("batch", batch), ("publish-to-ack", publish_to_ack)];
    for (name, row) in rows {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            row(&root);
        }
    }
    if let Err(error) = std::fs::remove_dir_all(&root) {
        eprintln!("{}: {error}", root.display());
    }
}

fn queue(root: &Path) -> Queue {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let queues = Queues::open(root.join(number.to_string())).expect("a directory");
    let config = Config { dedup_window_ms: 0, ..Config::default() };
    queues.queue("jobs", Settings { config, durability: Durability::Os }).expect("a queue")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What the calling thread has had of the CPU.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::from_secs(time.tv_sec.cast_unsigned()) + Duration::from_nanos(time.tv_nsec.cast_unsigned())
}

/// Nanoseconds for each of `count` things.
fn row(name: &str, count: u32, root: &Path, work: fn(&Queue)) {
    let (mut times, mut cpu_times) = (Vec::new(), Vec::new());
    let each_ns = |all: Duration| all.as_secs_f64() * 1e9 / f64::from(count);
    for _ in 0..ROUNDS {
        let queue = queue(root);
        let (began, cpu_began) = (Instant::now(), cpu_time());
        work(&queue);
        cpu_times.push(each_ns(cpu_time().saturating_sub(cpu_began)));
        times.push(each_ns(began.elapsed()));
    }
    let (time, cpu_time) = (median(times), median(cpu_times));
    println!("{name:24} {time:8.0} ns   {cpu_time:8.0} ns of CPU");
}

fn enqueue(root: &Path) {
    row("enqueue, one by one", MESSAGES, root, |queue| {
        for _ in 0..MESSAGES {
            queue.enqueue(VALUE).expect("room");
        }
    });
}

fn post(root: &Path) {
    row("post and flush at last", MESSAGES, root, |queue| {
        for _ in 0..MESSAGES {
            queue.post(VALUE).expect("room");
        }
        queue.flush().expect("a disk");
    });
}

fn batch(root: &Path) {
    row("enqueue in batches", MESSAGES, root, |queue| {
        for _ in 0..MESSAGES / BATCH {
            queue.enqueue_batch(std::iter::repeat_n(VALUE, BATCH as usize)).expect("room");
        }
    });
}

/// One message at a time, from the call that puts it in to the end of the call that acknowledges it.
fn publish_to_ack(root: &Path) {
    fn one(queue: &Queue) {
        queue.enqueue(VALUE).expect("room");
        let taken: Vec<Delivery> = queue.receive(1, Duration::from_secs(1)).expect("a disk");
        queue.ack_all(taken).expect("it is mine");
    }
    row("publish to ack", MESSAGES, root, |queue| (0..MESSAGES).for_each(|_| one(queue)));
    let queue = queue(root);
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..MESSAGES {
        let began = Instant::now();
        one(&queue);
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    let at = |per_mille: usize| times[times.len() * per_mille / 1000];
    println!("{:24} p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us", "", at(500), at(990), at(999));
}
