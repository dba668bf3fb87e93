//! What must last: entries for the journals, commits at the end of a turn, and the answers that wait for them.

use std::sync::Arc;

use mainstem_mqtt::{Packet, ReasonCode, SubAck, UserProperties, Version};
use mainstem_runtime::Io;

use crate::answers::{Answer, Failure, Owed, Receipt, Wait, What};
use crate::groups::Group;
use crate::journal::Arrived;
use crate::journal::entry::{Entry, Origin, SessionEntry, WillEntry};
use crate::journal::{Journal, encode_message};
use crate::message::{Message, SessionKey};
use crate::offer::{Deferred, Offer};
use crate::retained_log::RetainedLog;
use crate::session::CutShort;
use crate::shard::Shard;
use crate::shared::{Mail, Part, ReceiptMail, RetainMail};
use crate::timers::Timer;

/// Time between two looks at what stores have to do by themselves, ms.
const TEND_MS: u64 = 1_000;

/// What the answer to a publish waits for, and who is told that it does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Due {
    /// Other shards are to tell this answer.
    pub(crate) receipt: Option<Receipt>,
    /// It is a QoS 2 publish of a session that lasts.
    pub(crate) origin: Option<Origin>,
    /// It has come to some already, before a crash.
    pub(crate) cut_short: Option<CutShort>,
}

impl Shard {
    /// Whether sessions outlive the process.
    pub(crate) fn keeps_sessions(&self) -> bool {
        !self.deliveries.journals.is_empty()
    }

    pub(crate) fn journal(&mut self, slot: u32) -> Option<(&mut Journal, u32)> {
        let session = self.deliveries.sessions.at(slot);
        let (journal, number) = (usize::from(session.journal), session.number);
        (number != 0).then(|| (&mut self.deliveries.journals[journal], number))
    }

    /// How much this shard has entered anywhere: grows with each entry.
    pub(crate) fn entered(&self) -> u64 {
        let journals: u64 = self.deliveries.journals.iter().map(Journal::next_offset).sum();
        journals + self.retained_log.as_ref().map_or(0, |log| log.records)
    }

    /// What an answer has to wait for that was asked for when [`Shard::entered`] was `before`: the turn's
    /// commit if something has been entered since.
    fn wait_since(&self, before: u64) -> Wait {
        let commit = if self.entered() == before { 0 } else { self.commits.current() };
        Wait { commit, receipts: 0 }
    }

    /// Does `act`, and returns what has to be waited for until what it entered is on disk.
    pub(crate) fn entering<R>(&mut self, act: impl FnOnce(&mut Self) -> R) -> (R, Wait) {
        let before = self.entered();
        let result = act(self);
        (result, self.wait_since(before))
    }

    /// Waits for everything entered so far, here and on other shards: for an answer that repeats another.
    pub(crate) fn fence(&mut self, io: &mut Io<'_, Mail>, receipt: Receipt) -> Wait {
        let commit = self.commits.latest(true);
        self.commit_is_due = true;
        // Retained messages are entered on the first shard, whether sessions there last or not.
        let retained = u64::from(self.shared.keeps_retained());
        let mut others = (self.shared.lasting() | retained) & !(1 << self.me);
        let receipts = others.count_ones();
        while others != 0 {
            let other = others.trailing_zeros() as usize;
            others &= others - 1;
            io.send(other, Mail::Fence(ReceiptMail(receipt)));
        }
        Wait { commit, receipts }
    }

    /// A session as its journal is to know it.
    pub(crate) fn enter_session(&mut self, io: &Io<'_, Mail>, slot: u32) {
        let clock = io.clock;
        let session = self.deliveries.sessions.at(slot);
        if !session.lasts() {
            return;
        }
        let gone_unix_ms = session.gone_unix_ms(clock);
        let mut publish = Vec::new();
        let will = session.rare.as_ref().and_then(|rare| rare.will.as_ref().or(rare.will_leaving.as_ref()));
        if let Some(will) = will {
            encode_message(&will.message, clock, &mut publish);
        }
        let entry = Entry::Session(SessionEntry {
            number: session.number,
            client_id: &session.client_id,
            version: session.version as u8,
            expiry_s: session.expiry_s,
            gone_unix_ms,
            will: will.map(|will| WillEntry {
                delay_s: will.delay_s,
                expiry_s: will.expiry_s,
                publish: &publish,
            }),
        });
        self.deliveries.journals[usize::from(session.journal)].push(&entry);
    }

    /// Everybody has been offered a message: enters it for those who must get it whatever happens.
    #[inline]
    pub(crate) fn enter_message(
        &mut self,
        io: &mut Io<'_, Mail>,
        message: &Arc<Message>,
        origin: Option<Origin>,
    ) {
        if self.shared.lasting() & (1 << self.me) != 0 {
            self.enter_for_all(io, message, origin);
        }
    }

    fn enter_for_all(&mut self, io: &mut Io<'_, Mail>, message: &Arc<Message>, origin: Option<Origin>) {
        self.enter_for_receivers(message, origin);
        for deferred in std::mem::take(&mut self.deliveries.deferred) {
            self.give_deferred(io, message, origin, &deferred);
        }
    }

    fn enter_for_receivers(&mut self, message: &Arc<Message>, origin: Option<Origin>) {
        for journal in &mut self.deliveries.journals {
            if journal.has_receivers() {
                journal.push_message(message, origin, None);
            }
        }
        self.wake_committing();
    }

    /// Sessions that got something which leaves with this turn's commit are to be looked at then.
    fn wake_committing(&mut self) {
        let commit = self.commits.current();
        for slot in self.deliveries.committing.drain(..) {
            let key = self.deliveries.sessions.key(self.me, slot);
            self.commits.wake_with(commit, key);
        }
    }

    /// A session that is being given the retained messages: this topic's comes first, then the new one.
    fn give_deferred(
        &mut self,
        io: &mut Io<'_, Mail>,
        message: &Arc<Message>,
        origin: Option<Origin>,
        deferred: &Deferred,
    ) {
        let Deferred { slot, qos, retain, ref ids, ref group } = *deferred;
        let topic = message.topic();
        let session = self.deliveries.sessions.at(slot);
        let options = session.rare.as_mut().and_then(|rare| {
            if rare.walks.is_empty() {
                return None;
            }
            rare.early.insert(topic.into());
            let walk = rare.walks.values().find(|walk| walk.cursor.is_ahead(topic))?;
            Some((walk.options, walk.id))
        });
        if let Some((options, id)) = options
            && let Some(retained) = self.shared.retained.get(topic)
            && !Arc::ptr_eq(&retained, message)
            && !retained.is_expired(io.clock.now_ms)
        {
            let offer = Offer {
                message: &retained,
                qos: retained.qos.min(options.qos),
                retain: true,
                ids: if id == 0 { &[] } else { std::slice::from_ref(&id) },
                group: None,
                walked: true,
            };
            self.deliveries.offer(io, slot, &offer);
            self.enter_message(io, &retained, None);
        }
        let offer = Offer { message, qos, retain, ids, group: group.as_ref(), walked: false };
        self.deliveries.offer(io, slot, &offer);
        self.enter_for_receivers(message, origin);
    }

    /// A topic's retained message has changed: it is entered here or where that is done.
    pub(crate) fn keep_retained(
        &mut self,
        io: &mut Io<'_, Mail>,
        topic: &str,
        receipt: Option<Receipt>,
    ) -> u32 {
        if !self.shared.keeps_retained() {
            return 0;
        }
        if self.me != 0 {
            io.send(0, Mail::Retain(RetainMail { topic: topic.into(), receipt }));
            return u32::from(receipt.is_some());
        }
        self.enter_retained(io, topic);
        0
    }

    fn enter_retained(&mut self, io: &Io<'_, Mail>, topic: &str) {
        let commit = self.commits.current();
        if let (Some(log), Some(journal)) = (&mut self.retained_log, self.deliveries.journals.first_mut()) {
            // What is retained now: a newer value than the one that led here is just as good.
            let message = self.shared.retained.get(topic);
            log.push(journal.store(), io.clock, topic, message.as_deref(), commit);
        }
    }

    /// Mail that is about keeping things.
    pub(crate) fn on_retain(&mut self, io: &mut Io<'_, Mail>, mail: &RetainMail) {
        let ((), wait) = self.entering(|shard| shard.enter_retained(io, &mail.topic));
        self.owe(io, wait, mail.receipt, None);
    }

    pub(crate) fn on_fence(&mut self, io: &mut Io<'_, Mail>, receipt: Receipt) {
        self.commit_is_due = true;
        let wait = Wait { commit: self.commits.latest(true), receipts: 0 };
        self.owe(io, wait, Some(receipt), None);
    }

    /// Tells whoever asked for it, now or when `wait` is over, what has become of this shard's part.
    pub(crate) fn owe(
        &mut self,
        io: &mut Io<'_, Mail>,
        wait: Wait,
        receipt: Option<Receipt>,
        group: Option<&Arc<Group>>,
    ) {
        let Some(receipt) = receipt else { return };
        let owed = Owed { receipt, group: group.cloned() };
        if wait.is_over(self.commits.durable()) {
            self.send_receipt(io, owed, true);
        } else {
            self.commits.owe(wait.commit, owed);
        }
    }

    fn send_receipt(&mut self, io: &mut Io<'_, Mail>, owed: Owed, is_durable: bool) {
        let Owed { receipt, group } = owed;
        let part =
            Part { is_durable, refused: None, group, lacking: if is_durable { 0 } else { self.failing() } };
        let shard = receipt.session.shard;
        if shard == self.me {
            self.on_receipt(io, receipt, &part);
        } else {
            io.send(usize::from(shard), Mail::Receipt(ReceiptMail(receipt), part));
        }
    }

    pub(crate) fn on_receipt(&mut self, io: &mut Io<'_, Mail>, receipt: Receipt, part: &Part) {
        let is_durable = part.is_durable;
        if let Some(ending) = self.ending.iter_mut().find(|ending| ending.answers.contains(&receipt.number)) {
            ending.wait.receipts = ending.wait.receipts.saturating_sub(1);
            ending.has_failed |= !is_durable;
            self.enter_ends();
            return;
        }
        if self.fence_receipt(receipt, is_durable) {
            return;
        }
        let Some(session) = self.deliveries.sessions.get(receipt.session) else { return };
        if let Some(rare) = &mut session.rare {
            rare.answers.receipt(receipt.number, part.failure());
        }
        self.hear_of_part(receipt, part);
        self.send_answers(io, receipt.session.slot);
    }

    /// A number for an answer, to ask other shards for receipts with.
    pub(crate) fn receipt_for(&mut self, slot: u32) -> Receipt {
        self.next_answer += 1;
        Receipt { session: self.deliveries.sessions.key(self.me, slot), number: self.next_answer }
    }

    /// An acknowledgement that waits for nothing but earlier answers, as nearly all do of sessions that need not
    /// last.
    #[inline]
    pub(crate) fn answer_at_once(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        first: u8,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        if self.deliveries.sessions.at(slot).owes_answers() {
            let what = What::Ack { first, packet_id, reason };
            self.answer(io, slot, Wait::default(), None, what);
        } else {
            self.acknowledge(io, slot, first, packet_id, reason);
        }
    }

    /// Answers a session's client as soon as `wait` is over, and not before earlier answers.
    pub(crate) fn answer(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        wait: Wait,
        receipt: Option<Receipt>,
        what: What,
    ) {
        self.answer_with(io, slot, wait, receipt, what, false);
    }

    /// The same; with `completes` the journal is told that a QoS 2 publish has arrived everywhere.
    pub(crate) fn answer_with(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        wait: Wait,
        receipt: Option<Receipt>,
        what: What,
        completes: bool,
    ) {
        let durable = self.commits.durable();
        let is_first = !self.deliveries.sessions.at(slot).owes_answers();
        if is_first && wait.is_over(durable) {
            self.give_answer(io, slot, &what, completes);
            return;
        }
        // Each that waits has a number of its own, by which receipts find it.
        let number = receipt.unwrap_or_else(|| self.receipt_for(slot)).number;
        let answer = Answer { number, wait, failure: None, completes, what };
        self.deliveries.sessions.at(slot).rare().answers.push(answer);
        if wait.commit > durable {
            let key = self.deliveries.sessions.key(self.me, slot);
            self.commits.wake_with(wait.commit, key);
        }
    }

    /// Sends the answers of a session that need not wait any more.
    pub(crate) fn send_answers(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let key = self.deliveries.sessions.key(self.me, slot);
        loop {
            let durable = self.commits.durable();
            let session = self.deliveries.sessions.at(slot);
            let next = session.rare.as_mut().and_then(|rare| rare.answers.pop(durable));
            let Some(answer) = next else { return };
            match answer.failure {
                None => self.give_answer(io, slot, &answer.what, answer.completes),
                Some(failure) => self.give_failure(io, slot, answer, failure),
            }
            if self.deliveries.sessions.get(key).is_none() {
                return;
            }
        }
    }

    fn give_answer(&mut self, io: &mut Io<'_, Mail>, slot: u32, what: &What, completes: bool) {
        match *what {
            What::Ack { first, packet_id, reason } => {
                if completes {
                    self.note_complete(slot, packet_id);
                }
                self.acknowledge(io, slot, first, packet_id, reason);
            }
            What::WillSent => self.forget_will(io, slot),
            What::Settled { sequence } => self.settle_given(slot, sequence),
            What::List { is_subscribe, packet_id, ref reasons } => {
                self.send_list(io, slot, is_subscribe, packet_id, reasons);
            }
        }
    }

    /// What was to be promised could not be kept, or was not taken.
    fn give_failure(&mut self, io: &mut Io<'_, Mail>, slot: u32, answer: Answer, failure: Failure) {
        const PUBACK: u8 = 4;
        const PUBREC: u8 = 5;
        let session = self.deliveries.sessions.at(slot);
        let (reason, why) = match failure {
            Failure::NotKept => (ReasonCode::QuotaExceeded, "what it asked for cannot be kept on disk"),
            Failure::Refused(reason) => (reason, "a queue or a topic refuses what it published"),
        };
        match &answer.what {
            // A PUBREC with an error would end an exchange that the disk may know of all the same; a session that
            // lasts is cut off instead, and goes on with it.
            What::Ack { first, packet_id, .. }
                if session.version == Version::V5
                    && (first >> 4 == PUBACK || (first >> 4 == PUBREC && !session.lasts())) =>
            {
                session.received.release(*packet_id);
                self.acknowledge(io, slot, *first, *packet_id, reason);
            }
            What::Ack { first, .. }
                if session.version == Version::V5
                    && first >> 4 == PUBREC
                    && matches!(failure, Failure::Refused(_)) =>
            {
                self.end_refused(slot, answer, reason);
            }
            What::WillSent if matches!(failure, Failure::Refused(_)) => {
                self.give_answer(io, slot, &answer.what, false);
            }
            // They stay with this session as well, and may be delivered twice.
            What::Settled { sequence } => self.doubt_given(slot, *sequence),
            What::WillSent => self.doubt(slot),
            _ if !session.connected => {}
            _ => {
                let client_id = Arc::clone(&session.client_id);
                if let What::Ack { packet_id, .. } = answer.what
                    && !session.lasts()
                {
                    // It is not known elsewhere, so that it counts as new when it comes again.
                    session.received.release(packet_id);
                }
                self.cut_short_answered(slot, &answer.what);
                log::warn!("client {client_id:?} is disconnected: {why}");
                self.disconnect(io, slot, reason, Some(why));
            }
        }
    }

    pub(crate) fn send_list(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        is_subscribe: bool,
        packet_id: u16,
        reasons: &[u8],
    ) {
        let has_reasons = is_subscribe || self.deliveries.sessions.at(slot).version == Version::V5;
        let list = SubAck {
            packet_id,
            reason_string: None,
            user_properties: UserProperties::default(),
            reasons: if has_reasons { reasons } else { &[] },
        };
        self.send(io, slot, &if is_subscribe { Packet::SubAck(list) } else { Packet::UnsubAck(list) });
    }

    /// Takes in what has arrived on disk, and lets go what waited for it.
    pub(crate) fn poll_commits(&mut self, io: &mut Io<'_, Mail>) {
        if self.deliveries.journals.is_empty() {
            return;
        }
        let mut arrived: Vec<Arrived> = std::mem::take(&mut self.arrived);
        let mut others = Vec::new();
        for journal in &mut self.deliveries.journals {
            journal.begin_turn(io.clock);
            others.clear();
            journal.poll(&mut arrived, &mut others);
            for completion in &others {
                if let Some(log) = &mut self.retained_log {
                    log.complete(completion, &mut arrived);
                }
                journal.noted(completion);
            }
        }
        // Before anybody is told: whoever comes again must not be taken for done.
        self.give_up_lost();
        for Arrived { commit, is_durable } in arrived.drain(..) {
            self.commits.arrive(commit, is_durable);
        }
        self.arrived = arrived;
        while let Some(over) = self.commits.next_over() {
            if over.has_failed {
                self.fail_ends(over.commit);
            }
            while let Some(owed) = self.commits.next_owed(over.commit) {
                self.send_receipt(io, owed, !over.has_failed);
            }
            while let Some(key) = self.commits.next_waiting(over.commit) {
                self.on_commit(io, key, over.commit, over.has_failed);
            }
        }
        self.forget_ended();
        self.note_failures();
        if !self.ending.is_empty() {
            let ((), wait) = self.entering(Self::enter_ends);
            if wait.commit > 0 {
                io.again_soon();
            }
        }
        self.deliveries.queued_elsewhere = self.shared.queued_elsewhere(self.me);
    }

    /// The journals of this shard that cannot keep anything now; one bit each.
    pub(crate) fn failing(&self) -> u64 {
        let failing = self.deliveries.journals.iter().filter(|journal| journal.is_failing());
        failing.fold(0, |bits, journal| bits | 1 << journal.home)
    }

    pub(crate) fn note_failures(&mut self) {
        let mine = self.deliveries.journals.iter().fold(0, |bits, journal| bits | 1 << journal.home);
        self.shared.set_failing(mine, self.failing());
        if let Some(log) = &self.retained_log {
            self.shared.set_retained_failing(log.is_failing());
        }
    }

    fn on_commit(&mut self, io: &mut Io<'_, Mail>, key: SessionKey, commit: u64, has_failed: bool) {
        self.end_welcome(io, key, commit, has_failed);
        // One that was not to outlive its connection has ended with it.
        let Some(session) = self.deliveries.sessions.get(key) else { return };
        if has_failed && let Some(rare) = &mut session.rare {
            rare.answers.fail(commit);
        }
        let is_connected = session.connected;
        self.send_answers(io, key.slot);
        if is_connected && self.deliveries.sessions.get(key).is_some() {
            self.pump(io, key.slot);
        }
    }

    /// Sets everything that was entered in this turn on its way to the disk.
    pub(crate) fn commit_turn(&mut self, io: &mut Io<'_, Mail>) {
        if self.deliveries.journals.is_empty() {
            return;
        }
        self.go_on_with_snapshots(io);
        let commit = self.commits.current();
        let mut parts = 0;
        if let (Some(log), Some(journal)) = (&mut self.retained_log, self.deliveries.journals.first_mut()) {
            log.store_batch(journal.store(), commit);
            parts += log.parts(commit);
        }
        let mut has_failed = self.retained_log.as_mut().is_some_and(RetainedLog::take_has_lost);
        for journal in &mut self.deliveries.journals {
            parts += u32::from(journal.commit(commit));
            has_failed |= journal.has_lost();
        }
        let entered = self.entered();
        let has_entered = std::mem::replace(&mut self.entered_before, entered) != entered;
        if parts > 0 || has_entered || std::mem::take(&mut self.commit_is_due) {
            self.commit_is_due = false;
            self.commits.begin(parts, has_failed, io.clock.now_ms);
            self.deliveries.counters.log_commits += u64::from(parts > 0);
            self.count_log();
            // Some stores are done at once, and what was lost at once need not be waited for.
            self.poll_commits(io);
        }
        self.arm_marks(io);
    }

    fn count_log(&mut self) {
        let journals = &self.deliveries.journals;
        let sum = |of: fn(&Journal) -> u64| journals.iter().map(of).sum::<u64>();
        let (records, failures, is_failing) = self
            .retained_log
            .as_ref()
            .map_or((0, 0, false), |log| (log.records, log.failures, log.is_failing()));
        let entries = sum(|journal| journal.entries) + records;
        let bytes = sum(|journal| journal.bytes);
        let failed = sum(|journal| journal.failures) + failures;
        let failing = sum(|journal| u64::from(journal.is_failing())) + u64::from(is_failing);
        let counters = &mut self.deliveries.counters;
        (counters.log_entries, counters.log_bytes) = (entries, bytes);
        (counters.log_failures, counters.log_failing) = (failed, failing);
    }

    /// Sees to it that marks leave in time although nothing else happens.
    fn arm_marks(&mut self, io: &mut Io<'_, Mail>) {
        let due = self.deliveries.journals.iter().filter_map(Journal::marks_due_ms).min();
        if let Some(due_ms) = due.filter(|due_ms| *due_ms > self.marks_armed_ms) {
            self.marks_armed_ms = due_ms;
            io.set_timer(due_ms, Timer::Marks.token());
        }
    }

    /// Lets stores do what is due by itself, and tries again what has failed.
    pub(crate) fn tend_stores(&mut self, io: &mut Io<'_, Mail>) {
        for journal in &mut self.deliveries.journals {
            journal.store().tend(io.clock.unix_ms);
        }
        self.enter_ends();
        self.settle_doubtful(io);
        let commit = self.commits.current();
        if let (Some(log), Some(journal)) = (&mut self.retained_log, self.deliveries.journals.first_mut()) {
            log.make_up(journal.store(), io.clock, &self.shared.retained, commit);
        }
        io.set_timer(io.clock.now_ms + TEND_MS, Timer::Tend.token());
    }

    /// Whether a QoS 1 or 2 publish can be taken now, with all that it promises.
    pub(crate) fn can_keep(&self) -> bool {
        !self.shared.is_failing()
    }

    /// Whether publishers have to wait for the disk.
    pub(crate) fn is_disk_behind(&self) -> bool {
        self.deliveries.journals.iter().any(Journal::is_behind)
    }
}
