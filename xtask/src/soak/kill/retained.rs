//! New subscribers to retained messages: what they get is at least what was acknowledged last.

use super::link::{Link, Lost};
use super::world::{RETAINED, Stream, World};
use mainstem_conformance::Version;
use mainstem_conformance::packet::{Message, PUBACK, Packet, SUBACK};
use mainstem_conformance::wire::{self, Connect, Subscribe};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const TURN: Duration = Duration::from_millis(20);
/// Between two looks, unless the broker was started anew.
const PAUSE: Duration = Duration::from_secs(2);
/// Longest time until all retained messages have come.
const PATIENCE: Duration = Duration::from_secs(15);

/// Looks at the retained messages whenever the broker has been started, and now and then, until the run closes.
pub(super) fn watch(world: &World) {
    let mut seen_lives = 0;
    let mut next = Instant::now();
    while !world.is_closing() {
        let lives = world.lives.load(Ordering::SeqCst);
        if lives != seen_lives || Instant::now() > next {
            match look(world) {
                Ok(()) => (seen_lives, next) = (lives, Instant::now() + PAUSE),
                Err(Lost::Gone) => {}
                Err(Lost::Wrong(what)) => {
                    world.faults.add("protocol", format_args!("reader of retained messages: {what}"));
                }
            }
        }
        thread::sleep(TURN);
    }
}

/// One look, through a new connection without a session.
///
/// # Errors
/// If the connection ends before all has been seen; nothing is wrong with that.
pub(super) fn look(world: &World) -> Result<(), Lost> {
    let acked = world.acked();
    let (mut link, _) = Link::open(world.port, Version::V5, &Connect::new("kill-retained"))?;
    link.put(&Subscribe::new(1).filter(format!("{RETAINED}/#"), 1));
    link.flush()?;
    let mut values: Vec<Option<u64>> = vec![None; world.streams.len()];
    let until = Instant::now() + PATIENCE;
    let (mut is_subscribed, mut packets) = (false, Vec::new());
    while !is_subscribed || lacking(world, &acked, &values).next().is_some() {
        if Instant::now() > until {
            break;
        }
        link.take(TURN, &mut packets)?;
        for packet in packets.drain(..) {
            match packet {
                Packet::Answer(answer) if answer.kind == SUBACK => is_subscribed = true,
                Packet::Publish(message) => {
                    link.put(&wire::ack(PUBACK, message.id));
                    note(world, &acked, &mut values, &message)?;
                }
                other => return Err(Lost::Wrong(format!("{other:?}"))),
            }
        }
        link.flush()?;
    }
    let found = values.iter().flatten().count() as u64;
    world.retained_checked.fetch_add(found, Ordering::Relaxed);
    for stream in lacking(world, &acked, &values) {
        let sentence = format_args!("{}: nothing, acknowledged before {}", stream.topic, stream.acked());
        world.faults.add("retained message lost", sentence);
    }
    Ok(())
}

/// Checks a message that came as retained; those that come live say nothing of what was stored.
fn note(world: &World, acked: &[u64], values: &mut [Option<u64>], message: &Message) -> Result<(), Lost> {
    if !message.retain {
        return Ok(());
    }
    let at = world.stream_of(&message.topic);
    let number = at.and_then(|at| Some((at, world.streams[at].number_of(&message.payload)?)));
    let Some((at, number)) = number else {
        return Err(Lost::Wrong(format!("a retained message that nobody sent, of {}", message.topic)));
    };
    if number + 1 < acked[at] || number >= world.streams[at].sent() {
        let sentence = format_args!("{}: {number}, acknowledged before {}", message.topic, acked[at]);
        world.faults.add("retained message stale", sentence);
    }
    values[at] = Some(number);
    Ok(())
}

/// Retained streams of which a message must be there and has not come. One that may have been cleared need not.
fn lacking<'a>(
    world: &'a World,
    acked: &'a [u64],
    values: &'a [Option<u64>],
) -> impl Iterator<Item = &'a Stream> {
    let all = world.streams.iter().zip(acked).zip(values);
    let due = |stream: &Stream, acked: u64| {
        stream.retain && acked > 0 && !Stream::clears_within(acked - 1..stream.sent())
    };
    all.filter(move |((stream, acked), value)| value.is_none() && due(stream, **acked))
        .map(|((stream, _), _)| stream)
}
