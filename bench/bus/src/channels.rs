//! The same rows with channels: without topics, one channel per receiver or one broadcast channel.

use tokio::sync::broadcast;

use crate::meter::measure;
use crate::{BURST, RECEIVERS};

/// Common interface of the channels.
trait Channels {
    const NAME: &'static str;

    fn new(receivers: u64) -> Self;
    fn send(&self, value: u64);
    /// Receives all pending messages of all receivers, and returns their sum.
    fn drain(&mut self) -> u64;
}

struct Crossbeam(Vec<(crossbeam_channel::Sender<u64>, crossbeam_channel::Receiver<u64>)>);

impl Channels for Crossbeam {
    const NAME: &'static str = "crossbeam";

    fn new(receivers: u64) -> Self {
        Self((0..receivers).map(|_| crossbeam_channel::bounded(1_024)).collect())
    }

    fn send(&self, value: u64) {
        self.0.iter().for_each(|(sender, _)| sender.try_send(value).expect("the channel has room"));
    }

    fn drain(&mut self) -> u64 {
        self.0.iter().map(|(_, receiver)| receiver.try_iter().sum::<u64>()).sum()
    }
}

struct Flume(Vec<(flume::Sender<u64>, flume::Receiver<u64>)>);

impl Channels for Flume {
    const NAME: &'static str = "flume";

    fn new(receivers: u64) -> Self {
        Self((0..receivers).map(|_| flume::bounded(1_024)).collect())
    }

    fn send(&self, value: u64) {
        self.0.iter().for_each(|(sender, _)| sender.try_send(value).expect("the channel has room"));
    }

    fn drain(&mut self) -> u64 {
        self.0.iter().map(|(_, receiver)| receiver.drain().sum::<u64>()).sum()
    }
}

struct Tokio(broadcast::Sender<u64>, Vec<broadcast::Receiver<u64>>);

impl Channels for Tokio {
    const NAME: &'static str = "tokio broadcast";

    fn new(receivers: u64) -> Self {
        let (sender, first) = broadcast::channel(1_024);
        let others = (1..receivers).map(|_| sender.subscribe());
        let all = others.chain([first]).collect();
        Self(sender, all)
    }

    fn send(&self, value: u64) {
        assert!(self.0.send(value).is_ok());
    }

    fn drain(&mut self) -> u64 {
        let receivers = self.1.iter_mut();
        receivers.map(|receiver| std::iter::from_fn(|| receiver.try_recv().ok()).sum::<u64>()).sum()
    }
}

pub(crate) fn all() {
    rows::<Crossbeam>();
    rows::<Flume>();
    rows::<Tokio>();
}

fn rows<C: Channels>() {
    let mut five = C::new(5);
    measure("publish-5", C::NAME, 1_000, || {
        for _ in 0..1_000 {
            five.send(1);
            assert_eq!(five.drain(), 5);
        }
    });
    let mut many = C::new(RECEIVERS);
    measure("fan-out", C::NAME, BURST * RECEIVERS, || {
        (0..BURST).for_each(|_| many.send(1));
        assert_eq!(many.drain(), BURST * RECEIVERS);
    });
    let mut one = C::new(1);
    measure("one-to-one", C::NAME, BURST, || {
        (0..BURST).for_each(|number| one.send(number));
        assert_eq!(one.drain(), BURST * (BURST - 1) / 2);
    });
}
