//! Appends that are not yet durable or not yet registered: their size counts against the queue's limits, and their
//! outcomes go to the callers that wait.
//!
//! A ticket covers the appends between two commits. Tickets complete in order. Offsets cannot identify an append, since
//! the offsets of a failed append are assigned again.

use std::collections::VecDeque;

use mainstem_log::Ticket;

/// The appends of one queue.
#[derive(Debug, Default)]
pub(crate) struct PendingSends {
    /// Unregistered appends, oldest first, and their total size.
    parts: VecDeque<Part>,
    bytes: u64,
    /// The last ticket issued, and the last one completed.
    last: Option<Ticket>,
    done: Option<Ticket>,
    /// Ranges of failed tickets: after the first, up to and including the second. Empty while nobody waits.
    failed: Vec<(Option<Ticket>, Ticket)>,
    waiting: usize,
    /// The last ticket without a waiter, and how often such tickets have failed.
    posted: Option<Ticket>,
    losses: u64,
}

/// The appends of one ticket.
#[derive(Debug)]
struct Part {
    ticket: Ticket,
    /// Exclusive.
    end_offset: u64,
    bytes: u64,
}

impl PendingSends {
    /// Size of the unregistered appends, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records an append that ends before this offset.
    pub(crate) fn append(&mut self, ticket: Ticket, end_offset: u64, bytes: u64) {
        self.last = Some(ticket);
        self.bytes += bytes;
        match self.parts.back_mut() {
            Some(part) if part.ticket == ticket => {
                (part.end_offset, part.bytes) = (end_offset, part.bytes + bytes);
            }
            _ => self.parts.push_back(Part { ticket, end_offset, bytes }),
        }
    }

    /// The queue has registered all messages below this offset.
    pub(crate) fn registered(&mut self, to: u64) {
        while let Some(part) = self.parts.pop_front_if(|part| part.end_offset <= to) {
            self.bytes -= part.bytes;
        }
    }

    /// All tickets up to this one have completed.
    pub(crate) fn complete(&mut self, ticket: Ticket, is_durable: bool) {
        let before = self.done.replace(ticket);
        if is_durable {
            return;
        }
        if self.waiting > 0 {
            self.failed.push((before, ticket));
        }
        if self.posted > before {
            self.losses += 1;
        }
        while let Some(part) = self.parts.pop_front_if(|part| part.ticket <= ticket) {
            self.bytes -= part.bytes;
        }
    }

    /// The last ticket issued.
    pub(crate) fn last(&self) -> Option<Ticket> {
        self.last
    }

    /// Whether all tickets up to this one have completed.
    pub(crate) fn is_done(&self, ticket: Option<Ticket>) -> bool {
        self.done >= ticket
    }

    /// Nobody waits for this ticket; [`losses`](Self::losses) counts its failure.
    pub(crate) fn post(&mut self, ticket: Ticket) {
        self.posted = Some(ticket);
    }

    /// Number of failures without a waiter.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }

    /// Adds a waiter for the last ticket, until [`outcome`](Self::outcome) returns a result or [`leave`](Self::leave)
    /// is called.
    pub(crate) fn wait(&mut self) {
        self.waiting += 1;
    }

    /// Whether a ticket succeeded; `None` while it is open. Each waiter gets the result once.
    pub(crate) fn outcome(&mut self, ticket: Ticket) -> Option<bool> {
        if !self.is_done(Some(ticket)) {
            return None;
        }
        let has_failed = self.failed.iter().any(|(after, to)| Some(ticket) > *after && ticket <= *to);
        self.leave();
        Some(!has_failed)
    }

    /// Removes a waiter.
    pub(crate) fn leave(&mut self) {
        self.waiting -= 1;
        if self.waiting == 0 {
            self.failed.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_does_not_affect_earlier_tickets() {
        let mut sent = PendingSends::default();
        for ticket in 1..=4 {
            sent.append(Ticket(ticket), ticket, 10);
            sent.wait();
        }
        sent.complete(Ticket(1), true);
        sent.complete(Ticket(3), false);
        assert_eq!(sent.outcome(Ticket(4)), None);
        assert_eq!((sent.bytes(), sent.losses()), (10, 0));
        sent.complete(Ticket(4), true);
        let outcomes = [1, 2, 3, 4].map(|ticket| sent.outcome(Ticket(ticket)));
        assert_eq!(outcomes, [Some(true), Some(false), Some(false), Some(true)]);
        assert!(sent.failed.is_empty(), "nobody waits");
    }

    #[test]
    fn only_failures_without_a_waiter_count_as_losses() {
        let mut sent = PendingSends::default();
        sent.append(Ticket(1), 1, 10);
        sent.post(Ticket(1));
        sent.complete(Ticket(1), true);
        sent.append(Ticket(2), 2, 10);
        sent.complete(Ticket(2), false);
        assert_eq!(sent.losses(), 0);
        sent.append(Ticket(3), 2, 10);
        sent.post(Ticket(3));
        sent.append(Ticket(4), 3, 10);
        sent.complete(Ticket(4), false);
        assert_eq!(sent.losses(), 1);
    }

    #[test]
    fn registered_appends_are_not_pending() {
        let mut sent = PendingSends::default();
        sent.append(Ticket(1), 1, 10);
        sent.append(Ticket(1), 2, 10);
        sent.append(Ticket(2), 3, 5);
        sent.registered(1);
        assert_eq!(sent.bytes(), 25, "a ticket is registered as a whole");
        sent.registered(2);
        assert_eq!(sent.bytes(), 5);
        sent.registered(3);
        assert_eq!(sent.bytes(), 0);
    }
}
