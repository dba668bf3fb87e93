//! Drainers: workers at the end of a run, one per group, that acknowledge everything until nothing is left.

use mainstem_queue_core::{Disposition, GroupName, QueueError, Receipt, Reply, Request, Settlement};

use super::client::{Client, Context};
use super::oracle::Pending;

/// Consumer numbers of drainers start here.
const CONSUMERS_FROM: u64 = super::worker::CONSUMERS_FROM + 1_000_000_000;
const LEASE_MS: u64 = 60_000;

#[derive(Debug)]
pub(crate) struct Drainer {
    queue: usize,
    group: GroupName,
    number: u64,
    held: Vec<Receipt>,
    /// The last request returned no messages.
    is_empty: bool,
    /// What the queue reported about itself when it last returned no messages.
    left: Option<String>,
}

impl Drainer {
    pub(crate) fn new(number: u64, queue: usize, group: GroupName) -> Self {
        Self { queue, group, number, held: Vec::new(), is_empty: false, left: Some("?".to_owned()) }
    }
}

impl Client for Drainer {
    fn act(&mut self, context: &mut Context<'_>) {
        if context.waiting > 0 {
            return;
        }
        let group = GroupName::clone(&self.group);
        if !self.held.is_empty() {
            let ack = |receipt: Receipt| Settlement { receipt, disposition: Disposition::Ack };
            let settlements = self.held.drain(..).map(ack).collect();
            context.ask(self.queue, Request::Settle { group, settlements });
        } else if std::mem::take(&mut self.is_empty) {
            context.ask(self.queue, Request::Info);
        } else {
            let request = Request::Receive {
                group,
                consumer: CONSUMERS_FROM + self.number,
                max: 100,
                bytes_max: usize::MAX,
                lease_ms: Some(LEASE_MS),
                wait_ms: 0,
            };
            context.ask(self.queue, request);
        }
    }

    fn handle_reply(&mut self, _: &mut Context<'_>, _: &Pending, reply: &Reply) {
        match reply {
            Reply::Received(deliveries) => {
                self.held.extend(deliveries.iter().map(|delivery| delivery.receipt));
                self.is_empty = deliveries.is_empty();
                if !deliveries.is_empty() {
                    self.left = Some("more".to_owned());
                }
            }
            Reply::Info(info) => self.left = (info.messages > 0).then(|| format!("{info:?}")),
            // The queue was never used.
            Reply::Refused(QueueError::UnknownQueue) => self.left = None,
            _ => {}
        }
    }

    fn connection_lost(&mut self, _: &Pending) {
        self.left = Some("?".to_owned());
    }

    fn is_done(&self) -> bool {
        self.left.is_none()
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}
