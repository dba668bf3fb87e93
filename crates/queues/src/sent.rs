//! What was put into a queue and is on its way: how much that is, and what becomes of it.
//!
//! A ticket stands for all that was appended between two commits. Tickets come to their end in order, well or not. Offsets
//! say nothing about that: those of what has failed are given to what comes next.

use std::collections::VecDeque;

use mainstem_log::Ticket;

/// What a queue knows of its appends.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// What is not registered, oldest first, and the size of all of it, bytes.
    parts: VecDeque<Part>,
    bytes: u64,
    /// The last ticket that was given, and the last one that has come to its end.
    last: Option<Ticket>,
    done: Option<Ticket>,
    /// Tickets that have failed: those behind the one, up to the other. Kept while somebody waits for any ticket.
    failed: Vec<(Option<Ticket>, Ticket)>,
    waiting: usize,
    /// The last ticket that somebody does not wait for, and how often such have failed.
    posted: Option<Ticket>,
    losses: u64,
}

/// What one ticket stands for.
#[derive(Debug)]
struct Part {
    ticket: Ticket,
    /// Offset behind it.
    end: u64,
    bytes: u64,
}

impl Sent {
    /// Size of what is not registered, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Something was appended that ends at this offset, of this size.
    pub(crate) fn append(&mut self, ticket: Ticket, end: u64, bytes: u64) {
        self.last = Some(ticket);
        self.bytes += bytes;
        match self.parts.back_mut() {
            Some(part) if part.ticket == ticket => (part.end, part.bytes) = (end, part.bytes + bytes),
            _ => self.parts.push_back(Part { ticket, end, bytes }),
        }
    }

    /// Everything below this offset is registered.
    pub(crate) fn registered(&mut self, to: u64) {
        while let Some(part) = self.parts.pop_front_if(|part| part.end <= to) {
            self.bytes -= part.bytes;
        }
    }

    /// All tickets up to this one have come to their end.
    pub(crate) fn complete(&mut self, ticket: Ticket, is_kept: bool) {
        let before = self.done.replace(ticket);
        if is_kept {
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

    /// The last ticket that was given.
    pub(crate) fn last(&self) -> Option<Ticket> {
        self.last
    }

    /// Whether all tickets up to this one have come to their end.
    pub(crate) fn is_done(&self, ticket: Option<Ticket>) -> bool {
        self.done >= ticket
    }

    /// Nobody waits for this ticket, but somebody may [ask](Self::losses) later.
    pub(crate) fn post(&mut self, ticket: Ticket) {
        self.posted = Some(ticket);
    }

    /// How often something has failed that nobody waited for.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }

    /// Somebody waits for a ticket that was just given, until it has its [outcome](Self::outcome) or is
    /// [left](Self::leave).
    pub(crate) fn wait(&mut self) {
        self.waiting += 1;
    }

    /// Whether a ticket has come to a good end; nothing if that is not known yet. Told once to each of those who wait.
    pub(crate) fn outcome(&mut self, ticket: Ticket) -> Option<bool> {
        if !self.is_done(Some(ticket)) {
            return None;
        }
        let has_failed = self.failed.iter().any(|(after, to)| Some(ticket) > *after && ticket <= *to);
        self.leave();
        Some(!has_failed)
    }

    /// Somebody does not care any more.
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
    fn what_was_durable_before_something_failed_is_not_said_to_have_failed() {
        let mut sent = Sent::default();
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
    fn what_fails_counts_as_lost_only_if_nobody_waits_for_it() {
        let mut sent = Sent::default();
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
    fn what_is_registered_is_not_on_its_way() {
        let mut sent = Sent::default();
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
