//! Those who are left at the end of a run: patient workers, one for each group, who acknowledge all that comes until
//! there is nothing more.

use mainstem_queue::{GroupName, Receipt, Refusal, Reply, Request, Settlement, Verdict};

use super::client::{Client, Desk};
use super::ledger::Pending;

/// Consumers with numbers from here on are patient.
const CONSUMERS_FROM: u64 = super::worker::CONSUMERS_FROM + 1_000_000_000;
const LEASE_MS: u64 = 60_000;

#[derive(Debug)]
pub(crate) struct Drainer {
    queue: usize,
    group: GroupName,
    number: u64,
    held: Vec<Receipt>,
    /// Nothing came when it asked last.
    has_asked: bool,
    /// What the queue says of itself, the last time that nothing came.
    left: Option<String>,
}

impl Drainer {
    pub(crate) fn new(number: u64, queue: usize, group: GroupName) -> Self {
        Self { queue, group, number, held: Vec::new(), has_asked: false, left: Some("?".to_owned()) }
    }
}

impl Client for Drainer {
    fn act(&mut self, desk: &mut Desk<'_>) {
        if desk.waiting > 0 {
            return;
        }
        let group = GroupName::clone(&self.group);
        if !self.held.is_empty() {
            let ack = |receipt: Receipt| Settlement { receipt, verdict: Verdict::Ack };
            let settlements = self.held.drain(..).map(ack).collect();
            desk.ask(self.queue, Request::Settle { group, settlements });
        } else if std::mem::take(&mut self.has_asked) {
            desk.ask(self.queue, Request::Info);
        } else {
            let request = Request::Receive {
                group,
                consumer: CONSUMERS_FROM + self.number,
                max: 100,
                bytes_max: usize::MAX,
                lease_ms: Some(LEASE_MS),
                wait_ms: 0,
            };
            desk.ask(self.queue, request);
        }
    }

    fn answered(&mut self, _: &mut Desk<'_>, _: &Pending, reply: &Reply) {
        match reply {
            Reply::Received(deliveries) => {
                self.held.extend(deliveries.iter().map(|delivery| delivery.receipt));
                self.has_asked = deliveries.is_empty();
                if !deliveries.is_empty() {
                    self.left = Some("more".to_owned());
                }
            }
            Reply::Info(info) => self.left = (info.messages > 0).then(|| format!("{info:?}")),
            // Nobody has ever needed it.
            Reply::Refused(Refusal::UnknownQueue) => self.left = None,
            _ => {}
        }
    }

    fn lost(&mut self, _: &Pending) {
        self.left = Some("?".to_owned());
    }

    fn is_done(&self) -> bool {
        self.left.is_none()
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}
