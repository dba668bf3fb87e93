//! `mainstem sub`: subscribes, prints messages, and reconnects with `--reconnect`.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use mainstem_mqtt::packet::{
    Packet, RetainHandling, SubAck, Subscribe, SubscribeFilter, SubscribeOptions, Unsubscribe,
    UserProperties, Version,
};
use mainstem_mqtt::{QoS, ReasonCode};
use mainstem_topic::{check_filter, parse_subscription};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::client::Client;
use super::describe::reason_text;
use super::failure::Failure;
use super::message_handler::{Flow, MessageHandler};
use super::properties::{Properties, borrowed};
use super::session::Session;
use crate::cli::SubArgs;

const RECONNECT_WAIT_MIN: Duration = Duration::from_secs(1);
const RECONNECT_WAIT_MAX: Duration = Duration::from_secs(30);
/// Longest wait for QoS 2 exchanges to complete before disconnecting.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Subscribes and prints messages until `-C` or `-W` is reached, or a signal arrives.
///
/// # Errors
/// If the connection or all subscriptions fail, or `-W` expires.
pub(crate) fn run(args: &SubArgs) -> Result<(), Failure> {
    let flags = args.connect.properties().map_err(Failure::new)?;
    let mut properties = Properties::new(&flags)?;
    properties.subscription_id = args.subscription_id.or(properties.subscription_id);
    let session = Session::new(&args.connect, properties, "sub")?;
    let mut filters = args.topic.clone();
    filters.extend(session.target.topic.clone());
    check(args, &filters)?;
    let interrupt = interrupt()?;
    let mut handler = MessageHandler::new(args)?;
    let mut subscriber = Subscriber { args, session: &session, filters, interrupt, until: None };

    let mut wait = RECONNECT_WAIT_MIN;
    loop {
        let failure = match subscriber.run_connection(&mut handler, &mut wait) {
            Err(failure) if args.reconnect && failure.is_transient() => failure,
            outcome => return outcome,
        };
        if !args.connect.quiet {
            eprintln!("mainstem sub: {failure}; reconnecting in {} s", wait.as_secs());
        }
        match subscriber.pause(wait)? {
            Pause::Interrupted => return Ok(()),
            Pause::TimedOut => return Err(Failure::timed_out()),
            Pause::Elapsed => wait = (wait * 2).min(RECONNECT_WAIT_MAX),
        }
    }
}

/// Checks filters and flags before connecting.
fn check(args: &SubArgs, filters: &[String]) -> Result<(), Failure> {
    for filter in filters.iter().chain(&args.unsubscribe) {
        parse_subscription(filter).map_err(|error| Failure::new(format!("filter {filter:?} {error}")))?;
    }
    for filter in &args.filter_out {
        check_filter(filter).map_err(|error| Failure::new(format!("filter {filter:?} {error}")))?;
    }
    if let Some(filter) = filters.iter().find(|filter| is_of_queue(filter))
        && args.qos == Some(QoS::AtMostOnce)
    {
        let what = "a work queue needs acknowledgements; use -q 1, or omit -q";
        return Err(Failure::new(format!("filter {filter:?}: {what}")));
    }
    if filters.is_empty() && args.unsubscribe.is_empty() {
        return Err(Failure::new("the URL has no topic"));
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

/// Whether a filter names a work queue, whose messages must be acknowledged.
fn is_of_queue(filter: &str) -> bool {
    parse_subscription(filter).is_ok_and(|parsed| parsed.filter.starts_with("$queue/"))
}

fn default_qos(filter: &str) -> QoS {
    if is_of_queue(filter) { QoS::AtLeastOnce } else { QoS::AtMostOnce }
}

/// Returns a descriptor that becomes readable on SIGINT and SIGTERM.
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
    Elapsed,
    Interrupted,
    TimedOut,
}

struct Subscriber<'a> {
    args: &'a SubArgs,
    session: &'a Session<'a>,
    filters: Vec<String>,
    interrupt: UnixStream,
    /// When `-W` expires, counted from the first connection.
    until: Option<Instant>,
}

impl Subscriber<'_> {
    /// Runs one connection. Resets `wait` once the broker has accepted it.
    fn run_connection(
        &mut self,
        handler: &mut MessageHandler<'_>,
        wait: &mut Duration,
    ) -> Result<(), Failure> {
        let mut client = Client::connect(self.session)?;
        *wait = RECONNECT_WAIT_MIN;
        if self.until.is_none() {
            self.until = self.args.timeout.map(|timeout| Instant::now() + timeout);
        }
        handler.connected(client.connack().session_present);
        let mut pending_acks = self.subscribe(&mut client)?;
        let mut frame = Vec::new();
        let outcome = loop {
            if let Some(flow) = self.handle_packets(&mut client, handler, &mut pending_acks, &mut frame)? {
                break flow;
            }
            handler.flush()?;
            if self.until.is_some_and(|until| until <= Instant::now()) {
                break Flow::TimedOut;
            }
            if client.wait(Some(self.interrupt.as_fd()), self.until)?.other {
                break Flow::Done;
            }
        };
        handler.flush()?;
        if outcome == Flow::OutputClosed {
            return Ok(());
        }
        self.disconnect(client, handler, &mut frame)?;
        if outcome == Flow::TimedOut { Err(Failure::timed_out()) } else { Ok(()) }
    }

    /// Sends SUBSCRIBE and UNSUBSCRIBE. Returns the number of acknowledgements to wait for.
    fn subscribe(&self, client: &mut Client) -> Result<usize, Failure> {
        let properties = &self.session.properties;
        let mut pending_acks = 0;
        if !self.filters.is_empty() {
            let options = |filter: &str| SubscribeOptions {
                qos: self.args.qos.unwrap_or(default_qos(filter)),
                no_local: self.args.no_local,
                retain_as_published: self.args.retain_as_published,
                retain_handling: match self.args.retain_handling {
                    0 => RetainHandling::Send,
                    1 => RetainHandling::SendIfNew,
                    _ => RetainHandling::DoNotSend,
                },
            };
            let filters: Vec<_> = self
                .filters
                .iter()
                .map(|filter| SubscribeFilter { filter, options: options(filter) })
                .collect();
            let user = borrowed(&properties.subscribe_user);
            let subscribe = Subscribe {
                packet_id: client.next_packet_id(),
                subscription_id: properties.subscription_id,
                user_properties: UserProperties::Pairs(&user),
                filters: filters.as_slice().into(),
            };
            client.send(&Packet::Subscribe(subscribe))?;
            pending_acks += 1;
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
            pending_acks += 1;
        }
        Ok(pending_acks)
    }

    /// Handles the packets that have been read. Returns `Some` if the subscriber is done.
    fn handle_packets(
        &self,
        client: &mut Client,
        handler: &mut MessageHandler<'_>,
        pending_acks: &mut usize,
        frame: &mut Vec<u8>,
    ) -> Result<Option<Flow>, Failure> {
        while client.try_receive(frame)? {
            match client.decode(frame)? {
                Packet::SubAck(suback) => {
                    self.subscribed(&suback)?;
                    *pending_acks -= 1;
                }
                Packet::UnsubAck(unsuback) => {
                    self.unsubscribed(&unsuback);
                    *pending_acks -= 1;
                }
                packet => match handler.packet(client, &packet)? {
                    Flow::Continue => {}
                    flow => return Ok(Some(flow)),
                },
            }
            let nothing_to_wait_for = self.filters.is_empty() && !self.args.connect.keep_session;
            if *pending_acks == 0 && (self.args.exit_subscribed || nothing_to_wait_for) {
                return Ok(Some(Flow::Done));
            }
        }
        Ok(None)
    }

    /// Prints a warning for each refused subscription. Fails if all are refused.
    fn subscribed(&self, suback: &SubAck<'_>) -> Result<(), Failure> {
        let refused: Vec<(&String, ReasonCode)> = self
            .filters
            .iter()
            .zip(suback.reasons)
            .filter_map(|(filter, reason)| Some((filter, ReasonCode::try_from(*reason).ok()?)))
            .filter(|(_, reason)| reason.is_error())
            .collect();
        match refused.as_slice() {
            [(filter, reason), ..] if refused.len() == self.filters.len() => {
                let what = format!("subscription to {filter} refused");
                Err(Failure::refused(&what, *reason, suback.reason_string))
            }
            some => {
                for (filter, reason) in some {
                    let what = format!("subscription to {filter} refused");
                    self.warn(&Failure::refused(&what, *reason, suback.reason_string).to_string());
                }
                Ok(())
            }
        }
    }

    fn unsubscribed(&self, unsuback: &SubAck<'_>) {
        for (filter, reason) in self.args.unsubscribe.iter().zip(unsuback.reasons) {
            match ReasonCode::try_from(*reason) {
                Ok(ReasonCode::Success) | Err(_) => {}
                Ok(reason) => self.warn(&format!("unsubscribing from {filter}: {}", reason_text(reason))),
            }
        }
    }

    fn warn(&self, text: &str) {
        if !self.args.connect.quiet {
            eprintln!("mainstem sub: {text}");
        }
    }

    /// Completes QoS 2 exchanges, then disconnects.
    fn disconnect(
        &self,
        mut client: Client,
        handler: &mut MessageHandler<'_>,
        frame: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let until = Instant::now() + RELEASE_TIMEOUT;
        while handler.has_unreleased() && client.receive(frame, Some(until))? {
            handler.release_only(&mut client, frame)?;
        }
        let properties = &self.session.properties;
        client.disconnect(properties.disconnect_session_expiry, &properties.disconnect_user)
    }

    /// Waits before reconnecting.
    fn pause(&self, wait: Duration) -> Result<Pause, Failure> {
        let now = Instant::now();
        let until = (now + wait).min(self.until.unwrap_or(now + wait));
        let remaining = until.saturating_duration_since(now);
        let timeout = Timespec::try_from(remaining).map_err(|error| Failure::new(error.to_string()))?;
        let mut fds = [PollFd::new(&self.interrupt, PollFlags::IN)];
        Ok(match poll(&mut fds, Some(&timeout)) {
            Ok(0) if self.until.is_some_and(|until| until <= Instant::now()) => Pause::TimedOut,
            Ok(0) => Pause::Elapsed,
            _ => Pause::Interrupted,
        })
    }
}
