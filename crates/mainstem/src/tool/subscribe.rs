//! `mainstem sub`: subscribe, print, and connect again if that is wanted.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use mainstem_mqtt::ReasonCode;
use mainstem_mqtt::packet::{
    Packet, RetainHandling, SubAck, Subscribe, SubscribeFilter, SubscribeOptions, Unsubscribe,
    UserProperties, Version,
};
use mainstem_topic::{check_filter, parse_subscription};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::client::Client;
use super::describe::reason_words;
use super::failure::Failure;
use super::incoming::{Flow, Incoming};
use super::properties::{Properties, borrowed};
use super::session::Session;
use crate::cli::SubArgs;

const RECONNECT_WAIT_MIN: Duration = Duration::from_secs(1);
const RECONNECT_WAIT_MAX: Duration = Duration::from_secs(30);
/// Longest wait for the end of QoS 2 exchanges before taking leave.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Subscribes and prints until count, time or interrupt end it.
///
/// # Errors
/// If the connection or the subscriptions fail, or time runs out.
pub(crate) fn run(args: &SubArgs) -> Result<(), Failure> {
    let given = args.connect.properties().map_err(Failure::new)?;
    let mut properties = Properties::new(&given)?;
    properties.subscription_id = args.subscription_id.or(properties.subscription_id);
    let session = Session::new(&args.connect, properties, "sub")?;
    let mut filters = args.topic.clone();
    filters.extend(session.target.topic.clone());
    check(args, &filters)?;
    let interrupt = interrupt()?;
    let mut incoming = Incoming::new(args)?;
    let mut subscriber = Subscriber { args, session: &session, filters, interrupt, until: None };

    let mut wait = RECONNECT_WAIT_MIN;
    loop {
        let failure = match subscriber.attempt(&mut incoming, &mut wait) {
            Err(failure) if args.reconnect && failure.is_passing() => failure,
            outcome => return outcome,
        };
        if !args.connect.quiet {
            eprintln!("mainstem sub: {failure}; connecting again in {} s", wait.as_secs());
        }
        match subscriber.pause(wait)? {
            Pause::Interrupted => return Ok(()),
            Pause::TimedOut => return Err(Failure::timed_out()),
            Pause::Over => wait = (wait * 2).min(RECONNECT_WAIT_MAX),
        }
    }
}

/// Refuses filters and flags before anything is sent.
fn check(args: &SubArgs, filters: &[String]) -> Result<(), Failure> {
    for filter in filters.iter().chain(&args.unsubscribe) {
        parse_subscription(filter).map_err(|error| Failure::new(format!("filter {filter:?} {error}")))?;
    }
    for filter in &args.filter_out {
        check_filter(filter).map_err(|error| Failure::new(format!("filter {filter:?} {error}")))?;
    }
    if filters.is_empty() && args.unsubscribe.is_empty() {
        return Err(Failure::new("the URL names no topic"));
    }
    let v5_only = args.no_local
        || args.retain_as_published
        || args.retain_handling > 0
        || args.subscription_id.is_some();
    if v5_only && args.connect.protocol != Version::V5 {
        return Err(Failure::new("subscription options need protocol version 5"));
    }
    Ok(())
}

/// A descriptor that becomes readable when the process is asked to end.
fn interrupt() -> Result<UnixStream, Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("signals: {error}"));
    let (reader, writer) = UnixStream::pair().map_err(failed)?;
    for signal in [SIGINT, SIGTERM] {
        let writer = writer.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(signal, writer).map_err(failed)?;
    }
    Ok(reader)
}

/// How a pause ended.
enum Pause {
    Over,
    Interrupted,
    TimedOut,
}

struct Subscriber<'a> {
    args: &'a SubArgs,
    session: &'a Session<'a>,
    filters: Vec<String>,
    interrupt: UnixStream,
    /// When `-W` runs out; counts from the first connection.
    until: Option<Instant>,
}

impl Subscriber<'_> {
    /// One connection from CONNECT to its end. Resets `wait` once it stands.
    fn attempt(&mut self, incoming: &mut Incoming<'_>, wait: &mut Duration) -> Result<(), Failure> {
        let mut client = Client::connect(self.session)?;
        *wait = RECONNECT_WAIT_MIN;
        if self.until.is_none() {
            self.until = self.args.timeout.map(|timeout| Instant::now() + timeout);
        }
        incoming.connected(client.server().session_present);
        let mut answers = self.subscribe(&mut client)?;
        let mut frame = Vec::new();
        let outcome = loop {
            if let Some(flow) = self.packets(&mut client, incoming, &mut answers, &mut frame)? {
                break flow;
            }
            incoming.flush()?;
            if self.until.is_some_and(|until| until <= Instant::now()) {
                break Flow::TimedOut;
            }
            if client.wait(Some(self.interrupt.as_fd()), self.until)?.other {
                break Flow::Done;
            }
        };
        incoming.flush()?;
        if outcome == Flow::OutputGone {
            return Ok(());
        }
        self.leave(client, incoming, &mut frame)?;
        if outcome == Flow::TimedOut { Err(Failure::timed_out()) } else { Ok(()) }
    }

    /// Sends SUBSCRIBE and UNSUBSCRIBE. How many answers are due.
    fn subscribe(&self, client: &mut Client) -> Result<usize, Failure> {
        let properties = &self.session.properties;
        let mut answers = 0;
        if !self.filters.is_empty() {
            let options = SubscribeOptions {
                qos: self.args.qos,
                no_local: self.args.no_local,
                retain_as_published: self.args.retain_as_published,
                retain_handling: match self.args.retain_handling {
                    0 => RetainHandling::Send,
                    1 => RetainHandling::SendIfNew,
                    _ => RetainHandling::DoNotSend,
                },
            };
            let filters: Vec<_> =
                self.filters.iter().map(|filter| SubscribeFilter { filter, options }).collect();
            let user = borrowed(&properties.subscribe_user);
            let subscribe = Subscribe {
                packet_id: client.next_packet_id(),
                subscription_id: properties.subscription_id,
                user_properties: UserProperties::Pairs(&user),
                filters: filters.as_slice().into(),
            };
            client.send(&Packet::Subscribe(subscribe))?;
            answers += 1;
        }
        if !self.args.unsubscribe.is_empty() {
            let filters: Vec<&str> = self.args.unsubscribe.iter().map(String::as_str).collect();
            let user = borrowed(&properties.unsubscribe_user);
            let unsubscribe = Unsubscribe {
                packet_id: client.next_packet_id(),
                user_properties: UserProperties::Pairs(&user),
                filters: filters.as_slice().into(),
            };
            client.send(&Packet::Unsubscribe(unsubscribe))?;
            answers += 1;
        }
        Ok(answers)
    }

    /// Handles what has been read. `Some` if that ends it.
    fn packets(
        &self,
        client: &mut Client,
        incoming: &mut Incoming<'_>,
        answers: &mut usize,
        frame: &mut Vec<u8>,
    ) -> Result<Option<Flow>, Failure> {
        while client.take(frame)? {
            match client.decode(frame)? {
                Packet::SubAck(suback) => {
                    self.subscribed(&suback)?;
                    *answers -= 1;
                }
                Packet::UnsubAck(unsuback) => {
                    self.unsubscribed(&unsuback);
                    *answers -= 1;
                }
                packet => match incoming.packet(client, &packet)? {
                    Flow::On => {}
                    flow => return Ok(Some(flow)),
                },
            }
            let nothing_to_wait_for = self.filters.is_empty() && !self.args.connect.keep_session;
            if *answers == 0 && (self.args.exit_subscribed || nothing_to_wait_for) {
                return Ok(Some(Flow::Done));
            }
        }
        Ok(None)
    }

    /// Tells of refused subscriptions; fails if there is no other.
    fn subscribed(&self, suback: &SubAck<'_>) -> Result<(), Failure> {
        let refusals: Vec<(&String, ReasonCode)> = self
            .filters
            .iter()
            .zip(suback.reasons)
            .filter_map(|(filter, reason)| Some((filter, ReasonCode::try_from(*reason).ok()?)))
            .filter(|(_, reason)| reason.is_error())
            .collect();
        match refusals.as_slice() {
            [(filter, reason), ..] if refusals.len() == self.filters.len() => {
                let what = format!("subscription to {filter} refused");
                Err(Failure::refused(&what, *reason, suback.reason_string))
            }
            some => {
                for (filter, reason) in some {
                    self.warn(&format!("subscription to {filter} refused: {}", reason_words(*reason)));
                }
                Ok(())
            }
        }
    }

    fn unsubscribed(&self, unsuback: &SubAck<'_>) {
        for (filter, reason) in self.args.unsubscribe.iter().zip(unsuback.reasons) {
            match ReasonCode::try_from(*reason) {
                Ok(ReasonCode::Success) | Err(_) => {}
                Ok(reason) => self.warn(&format!("unsubscribing from {filter}: {}", reason_words(reason))),
            }
        }
    }

    fn warn(&self, text: &str) {
        if !self.args.connect.quiet {
            eprintln!("mainstem sub: {text}");
        }
    }

    /// Ends what is begun at QoS 2, then disconnects.
    fn leave(
        &self,
        mut client: Client,
        incoming: &mut Incoming<'_>,
        frame: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let until = Instant::now() + RELEASE_TIMEOUT;
        while incoming.has_unreleased() && client.receive(frame, Some(until))? {
            incoming.release_only(&mut client, frame)?;
        }
        let properties = &self.session.properties;
        client.disconnect(properties.disconnect_session_expiry, &properties.disconnect_user)
    }

    /// Waits before the next attempt.
    fn pause(&self, wait: Duration) -> Result<Pause, Failure> {
        let now = Instant::now();
        let until = (now + wait).min(self.until.unwrap_or(now + wait));
        let left = until.saturating_duration_since(now);
        let timeout = Timespec::try_from(left).map_err(|error| Failure::new(error.to_string()))?;
        let mut fds = [PollFd::new(&self.interrupt, PollFlags::IN)];
        Ok(match poll(&mut fds, Some(&timeout)) {
            Ok(0) if self.until.is_some_and(|until| until <= Instant::now()) => Pause::TimedOut,
            Ok(0) => Pause::Over,
            _ => Pause::Interrupted,
        })
    }
}
