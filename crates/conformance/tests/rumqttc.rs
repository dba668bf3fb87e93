//! rumqttc, a Rust client of MQTT 5 that nobody here wrote, against the real binary.

use std::time::{Duration, Instant};

use mainstem_conformance::{Broker, DEADLINE, unique};
use rumqttc::{
    AckMode, AsyncClient, BrokerSessionResumePolicy, ConnAck, ConnectProperties, ConnectionError,
    DisconnectProperties, DisconnectReasonCode, Event, LastWill, LastWillProperties, ManualAck, MqttOptions,
    Packet, PubAckReason, PubRecReason, Publish, PublishOptions, PublishProperties, QoS, RetainForwardRule,
    StateError, SubscribeFilter, SubscribeProperties, SubscribeReasonCode, TopicAliasPolicy,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const EACH_QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

/// A client, and the task that drives its connection until that ends.
struct Peer {
    client: AsyncClient,
    connack: ConnAck,
    messages: UnboundedReceiver<Publish>,
    driver: JoinHandle<ConnectionError>,
}

impl Peer {
    /// Connects with a clean start.
    async fn connect(id: &str) -> Self {
        Self::connect_with(id, |_| {}).await
    }

    /// Connects with what `configure` makes of the options, and waits for the CONNACK.
    async fn connect_with(id: &str, configure: impl FnOnce(&mut MqttOptions)) -> Self {
        let addr = Broker::shared().addr();
        let mut options = MqttOptions::new(id, (addr.ip().to_string(), addr.port()));
        options.set_keep_alive(60).set_unlimited_incoming_packet_size();
        // These tests make a new client for each connection; what it must know of the session, they know.
        options.set_broker_session_resume_policy(BrokerSessionResumePolicy::AllowBrokerOnly);
        configure(&mut options);
        let (client, mut connection) = AsyncClient::builder(options).unbounded().build();
        let (incoming, messages) = unbounded_channel();
        let (accepted, mut connack) = unbounded_channel();
        let driver = tokio::spawn(async move {
            loop {
                match connection.poll().await {
                    Ok(Event::Incoming(Packet::Publish(message))) => {
                        incoming.send(message).expect("a test that listens");
                    }
                    Ok(Event::Incoming(Packet::ConnAck(packet))) => {
                        accepted.send(packet).expect("a test that connects");
                    }
                    Ok(_) => {}
                    Err(error) => return error,
                }
            }
        });
        let connack =
            within(connack.recv(), "a CONNACK").await.expect("a CONNACK before the connection ends");
        Self { client, connack, messages, driver }
    }

    /// Subscribes to one filter without further options; checks the QoS granted.
    async fn subscribe(&self, filter: &str, qos: QoS) {
        self.subscribe_with(SubscribeFilter::new(filter, qos), None).await;
    }

    async fn subscribe_with(&self, filter: SubscribeFilter, id: Option<usize>) {
        let granted = SubscribeReasonCode::Success(filter.qos);
        let properties = SubscribeProperties { id, user_properties: Vec::new() };
        let notice = self
            .client
            .subscribe_many_with_properties_tracked([filter], properties)
            .await
            .expect("a SUBSCRIBE");
        let suback = within(notice.wait_async(), "a SUBACK").await.expect("a SUBACK");
        assert_eq!(suback.return_codes, [granted]);
    }

    async fn unsubscribe(&self, filter: &str) {
        let notice = self.client.unsubscribe_tracked(filter).await.expect("an UNSUBSCRIBE");
        within(notice.wait_completion_async(), "an UNSUBACK").await.expect("an UNSUBACK");
    }

    /// Publishes, and returns when the QoS handshake is complete.
    async fn publish(&self, topic: &str, payload: &str, qos: QoS) {
        self.publish_with(topic, payload, PublishOptions::new(qos)).await;
    }

    async fn publish_with(&self, topic: &str, payload: &str, options: PublishOptions) {
        let notice = self.client.publish_tracked(topic, payload, options).await.expect("a PUBLISH");
        within(notice.wait_completion_async(), "an acknowledgement").await.expect("an acknowledgement");
    }

    /// Publishes one after the other, as many at once as the server takes.
    async fn publish_all(&self, topic: &str, payloads: &[String], qos: QoS) {
        let mut notices = Vec::new();
        for payload in payloads {
            let options = PublishOptions::new(qos);
            notices
                .push(self.client.publish_tracked(topic, payload.clone(), options).await.expect("a PUBLISH"));
        }
        for notice in notices {
            within(notice.wait_completion_async(), "an acknowledgement").await.expect("an acknowledgement");
        }
    }

    async fn next(&mut self) -> Publish {
        within(self.messages.recv(), "a message").await.expect("a message before the connection ends")
    }

    async fn receive(&mut self, count: usize) -> Vec<Publish> {
        let mut got = Vec::new();
        while got.len() < count {
            got.push(self.next().await);
        }
        got
    }

    /// The payloads of `count` messages.
    async fn payloads(&mut self, count: usize) -> Vec<String> {
        self.receive(count).await.iter().map(text).collect()
    }

    /// The messages up to the one with this payload, which a test sends last so that silence can be seen.
    async fn receive_until(&mut self, last: &str) -> Vec<Publish> {
        let mut got = Vec::new();
        loop {
            let message = self.next().await;
            if text(&message) == last {
                return got;
            }
            got.push(message);
        }
    }

    async fn leave(self) {
        self.client.disconnect().await.expect("a DISCONNECT");
        self.end().await;
    }

    async fn leave_with(self, reason: DisconnectReasonCode, session_expiry_interval: Option<u32>) {
        let properties = DisconnectProperties {
            session_expiry_interval,
            reason_string: None,
            user_properties: Vec::new(),
            server_reference: None,
        };
        self.client.disconnect_with_properties(reason, properties).await.expect("a DISCONNECT");
        self.end().await;
    }

    /// Waits for the end of the connection, and returns why it ended.
    async fn end(self) -> ConnectionError {
        within(self.driver, "the end of the connection").await.expect("a task that returns")
    }

    /// Closes the connection without a DISCONNECT, as a network failure would.
    async fn cut(self) {
        self.driver.abort();
        assert!(self.driver.await.expect_err("an aborted task").is_cancelled());
    }
}

async fn within<T>(future: impl Future<Output = T>, what: &str) -> T {
    timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("no {what} within {DEADLINE:?}"))
}

fn text(message: &Publish) -> String {
    String::from_utf8(message.payload.to_vec()).expect("a text")
}

fn topic_of(message: &Publish) -> &str {
    std::str::from_utf8(&message.topic).expect("a topic name")
}

fn properties_of(message: &Publish) -> PublishProperties {
    message.properties.clone().unwrap_or_default()
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

/// A session that outlives its connection by `seconds`, taken up if it is there.
fn durable(seconds: u32) -> impl FnOnce(&mut MqttOptions) {
    move |options| {
        options.set_clean_start(false).set_session_expiry_interval(Some(seconds));
    }
}

fn will(topic: &str, payload: &str, delay_interval: Option<u32>) -> LastWill {
    let properties = LastWillProperties {
        delay_interval,
        payload_format_indicator: None,
        message_expiry_interval: None,
        content_type: Some("text/plain".into()),
        response_topic: None,
        correlation_data: None,
        user_properties: vec![("b".into(), "1".into()), ("a".into(), "2".into())],
    };
    LastWill::new(topic, payload, QoS::AtLeastOnce, false, Some(properties))
}

/// Leaves a will behind.
fn leaving(last_will: LastWill) -> impl FnOnce(&mut MqttOptions) {
    move |options| {
        options.set_last_will(last_will);
    }
}

/// Lets time itself pass, where an interval of the protocol is what the test is about.
async fn let_pass(time: Duration) {
    tokio::time::sleep(time).await;
}

// [MQTT5-3.1.3-6] [MQTT5-3.1.3-7] [MQTT5-3.2.2-16]
#[tokio::test]
async fn an_empty_client_identifier_is_answered_with_an_assigned_one() {
    let first = Peer::connect("").await;
    let second = Peer::connect("").await;
    let assigned =
        |peer: &Peer| peer.connack.properties.clone().and_then(|found| found.assigned_client_identifier);
    assert!(assigned(&first).is_some_and(|id| !id.is_empty()));
    assert_ne!(assigned(&first), assigned(&second));
    first.leave().await;
    second.leave().await;
}

// [MQTT5-4.6.0-5] [MQTT5-4.3.3-10] [MQTT5-3.3.1-2] [MQTT5-3.3.1-12]
#[tokio::test]
async fn a_run_of_messages_arrives_once_and_in_order() {
    for qos in EACH_QOS {
        let topic = unique("rumqttc/run");
        let mut subscriber = Peer::connect(&unique("s")).await;
        let publisher = Peer::connect(&unique("p")).await;
        subscriber.subscribe(&topic, qos).await;
        let sent = numbers(500);
        publisher.publish_all(&topic, &sent, qos).await;
        let got = subscriber.receive(sent.len()).await;
        assert_eq!(got.iter().map(text).collect::<Vec<_>>(), sent);
        assert!(got.iter().all(|message| message.qos == qos && !message.dup && !message.retain));
        publisher.publish(&topic, "end", qos).await;
        assert_eq!(subscriber.receive_until("end").await, []);
        subscriber.leave().await;
        publisher.leave().await;
    }
}

// [MQTT5-3.8.4-8]
#[tokio::test]
async fn the_lower_quality_of_service_wins() {
    let mut peer = Peer::connect(&unique("a")).await;
    for granted in EACH_QOS {
        let topic = unique("rumqttc/lower");
        peer.subscribe(&topic, granted).await;
        for published in EACH_QOS {
            peer.publish(&topic, "x", published).await;
            assert_eq!(peer.next().await.qos as u8, (granted as u8).min(published as u8));
        }
    }
    peer.leave().await;
}

#[tokio::test]
async fn a_large_message_arrives_whole() {
    let mut peer = Peer::connect(&unique("a")).await;
    let payload = "0123456789abcdef".repeat(256 * 1024);
    for qos in EACH_QOS {
        let topic = unique("rumqttc/large");
        peer.subscribe(&topic, qos).await;
        peer.publish(&topic, &payload, qos).await;
        assert!(peer.next().await.payload == payload, "4 MiB at {qos:?}");
    }
    peer.leave().await;
}

// [MQTT5-3.1.2-8] [MQTT5-3.1.3-10]; after a normal DISCONNECT none comes [MQTT5-3.14.4-3].
#[tokio::test]
async fn a_lost_connection_leaves_a_will_and_a_normal_end_does_not() {
    let topic = unique("rumqttc/will");
    let mut watcher = Peer::connect(&unique("w")).await;
    watcher.subscribe(&topic, QoS::AtLeastOnce).await;
    let id = unique("a");
    Peer::connect_with(&id, leaving(will(&topic, "unheard", None))).await.leave().await;
    // The same identifier again: by its CONNACK the server is done with the old connection.
    let again = Peer::connect_with(&id, leaving(will(&topic, "gone", None))).await;
    again.publish(&topic, "first", QoS::AtLeastOnce).await;
    again.cut().await;
    let got = watcher.receive(2).await;
    assert_eq!(got.iter().map(text).collect::<Vec<_>>(), ["first", "gone"]);
    let properties = properties_of(&got[1]);
    assert_eq!(properties.content_type.as_deref(), Some("text/plain"));
    assert_eq!(properties.user_properties, [("b".into(), "1".into()), ("a".into(), "2".into())]);
    watcher.leave().await;
}

// DISCONNECT with reason 0x04 (MQTT 5, 3.14.2.1).
#[tokio::test]
async fn disconnect_with_will_message_publishes_it() {
    let topic = unique("rumqttc/will");
    let mut watcher = Peer::connect(&unique("w")).await;
    watcher.subscribe(&topic, QoS::AtLeastOnce).await;
    let leaving = Peer::connect_with(&unique("a"), leaving(will(&topic, "gone", None))).await;
    leaving.leave_with(DisconnectReasonCode::DisconnectWithWillMessage, None).await;
    assert_eq!(text(&watcher.next().await), "gone");
    watcher.leave().await;
}

// [MQTT5-3.1.2-8] [MQTT5-3.1.3-9]
#[tokio::test]
async fn a_will_waits_for_its_delay_and_is_cancelled_by_a_return() {
    let topic = unique("rumqttc/will");
    let mut watcher = Peer::connect(&unique("w")).await;
    watcher.subscribe(&topic, QoS::AtLeastOnce).await;
    let with_will = |payload, delay| {
        let last_will = will(&topic, payload, Some(delay));
        move |options: &mut MqttOptions| {
            durable(100)(options);
            options.set_last_will(last_will);
        }
    };
    let id = unique("a");
    Peer::connect_with(&id, with_will("cancelled", 5)).await.cut().await;
    let back = Peer::connect_with(&id, durable(0)).await;
    assert!(back.connack.session_present);
    let start = Instant::now();
    Peer::connect_with(&unique("b"), with_will("late", 6)).await.cut().await;
    watcher.publish(&topic, "first", QoS::AtLeastOnce).await;
    assert_eq!(watcher.payloads(2).await, ["first", "late"]);
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(5500) && waited < Duration::from_secs(15), "{waited:?}");
    back.leave().await;
    watcher.leave().await;
}

// [MQTT5-3.3.1-5] [MQTT5-3.3.1-6] [MQTT5-3.3.1-9] [MQTT5-3.3.1-10] [MQTT5-3.3.1-11]
#[tokio::test]
async fn retained_messages_and_retain_handling() {
    let topic = unique("rumqttc/retain");
    let retained = || PublishOptions::new(QoS::AtLeastOnce).retained();
    let mut peer = Peer::connect(&unique("a")).await;
    peer.publish_with(&topic, "old", retained()).await;
    peer.publish_with(&topic, "kept", retained()).await;
    let expected = [
        (RetainForwardRule::Never, 0),
        (RetainForwardRule::OnNewSubscribe, 0),
        (RetainForwardRule::OnEverySubscribe, 1),
        (RetainForwardRule::OnEverySubscribe, 1),
    ];
    for (rule, count) in expected {
        let filter = SubscribeFilter {
            retain_forward_rule: rule.clone(),
            ..SubscribeFilter::new(&topic, QoS::AtLeastOnce)
        };
        peer.subscribe_with(filter, None).await;
        peer.publish(&topic, "end", QoS::AtLeastOnce).await;
        let got = peer.receive_until("end").await;
        assert_eq!(got.len(), count, "{rule:?}");
        assert!(got.iter().all(|message| message.retain && text(message) == "kept"));
    }
    peer.unsubscribe(&topic).await;
    let on_new = || SubscribeFilter {
        retain_forward_rule: RetainForwardRule::OnNewSubscribe,
        ..SubscribeFilter::new(&topic, QoS::AtLeastOnce)
    };
    peer.subscribe_with(on_new(), None).await;
    assert_eq!(text(&peer.next().await), "kept");
    peer.publish_with(&topic, "", retained()).await;
    assert!(peer.next().await.payload.is_empty());
    peer.unsubscribe(&topic).await;
    peer.subscribe_with(on_new(), None).await;
    peer.publish(&topic, "end", QoS::AtLeastOnce).await;
    assert_eq!(peer.receive_until("end").await, []);
    peer.leave().await;
}

// [MQTT5-3.8.3-3] [MQTT5-3.3.1-12] [MQTT5-3.3.1-13]
#[tokio::test]
async fn no_local_and_retain_as_published() {
    let topic = unique("rumqttc/options");
    let retained = || PublishOptions::new(QoS::AtLeastOnce).retained();
    let mut peer = Peer::connect(&unique("a")).await;
    let mut other = Peer::connect(&unique("b")).await;
    let filter = SubscribeFilter {
        nolocal: true,
        preserve_retain: true,
        ..SubscribeFilter::new(&topic, QoS::AtLeastOnce)
    };
    peer.subscribe_with(filter, None).await;
    other.subscribe(&topic, QoS::AtLeastOnce).await;
    peer.publish(&topic, "own", QoS::AtLeastOnce).await;
    assert_eq!(text(&other.next().await), "own");
    other.publish_with(&topic, "theirs", retained()).await;
    let (kept, plain) = (peer.next().await, other.next().await);
    assert_eq!((text(&kept), kept.retain), ("theirs".into(), true));
    assert_eq!((text(&plain), plain.retain), ("theirs".into(), false));
    other.publish_with(&topic, "", retained()).await;
    peer.leave().await;
    other.leave().await;
}

// MQTT 5, 4.8.2: each message to one member, some to each; what comes after one has left goes to the others.
#[tokio::test]
async fn a_group_gets_every_message_once() {
    for qos in EACH_QOS {
        let topic = unique("rumqttc/group");
        let filter = format!("$share/group/{topic}");
        let end = unique("rumqttc/end");
        let publisher = Peer::connect(&unique("p")).await;
        let mut members = Vec::new();
        for _ in 0..3 {
            let member = Peer::connect(&unique("m")).await;
            member.subscribe(&filter, qos).await;
            member.subscribe(&end, qos).await;
            members.push(member);
        }
        let sent = numbers(120);
        let mut got = Vec::new();
        for (round, half) in sent.chunks(60).enumerate() {
            publisher.publish_all(&topic, half, qos).await;
            publisher.publish(&end, "end", qos).await;
            for (number, member) in members.iter_mut().enumerate() {
                let share = member.receive_until("end").await;
                assert_eq!(share.is_empty(), round == 1 && number == 0, "member {number}, round {round}");
                got.extend(share.iter().map(text));
            }
            members[0].unsubscribe(&filter).await;
        }
        got.sort_by_key(|payload| payload.parse::<usize>().expect("a number"));
        assert_eq!(got, sent);
        for member in members {
            member.leave().await;
        }
        publisher.leave().await;
    }
}

// [MQTT5-3.1.2-5] [MQTT5-3.1.2-23] [MQTT5-3.2.2-3] [MQTT5-4.5.0-1] [MQTT5-4.6.0-5]
#[tokio::test]
async fn messages_wait_for_an_absent_client() {
    let (id, topic) = (unique("s"), unique("rumqttc/queue"));
    let first = Peer::connect_with(&id, durable(100)).await;
    assert!(!first.connack.session_present);
    first.subscribe(&topic, QoS::ExactlyOnce).await;
    first.cut().await;
    let publisher = Peer::connect(&unique("p")).await;
    let sent = numbers(300);
    publisher.publish_all(&topic, &sent, QoS::ExactlyOnce).await;
    let mut second = Peer::connect_with(&id, durable(0)).await;
    assert!(second.connack.session_present);
    assert_eq!(second.payloads(sent.len()).await, sent);
    publisher.publish(&topic, "end", QoS::ExactlyOnce).await;
    assert_eq!(second.receive_until("end").await, []);
    second.leave().await;
    let third = Peer::connect_with(&id, durable(0)).await;
    assert!(!third.connack.session_present, "the second connection asked for a session of its own length");
    third.leave().await;
    publisher.leave().await;
}

// [MQTT5-4.4.0-1] [MQTT5-3.3.1-1]
#[tokio::test]
async fn unacknowledged_messages_come_again() {
    let [id, topic, gone] = ["s", "rumqttc/inflight", "rumqttc/gone"].map(unique);
    let first = Peer::connect_with(&id, |options| {
        durable(100)(options);
        leaving(will(&gone, "gone", None))(options);
        options.set_ack_mode(AckMode::Manual);
    });
    let mut first = first.await;
    first.subscribe(&topic, QoS::AtLeastOnce).await;
    let mut publisher = Peer::connect(&unique("p")).await;
    publisher.subscribe(&gone, QoS::AtLeastOnce).await;
    for payload in ["acknowledged", "one", "two"] {
        publisher.publish(&topic, payload, QoS::AtLeastOnce).await;
    }
    let got = first.receive(3).await;
    first.client.ack(&got[0]).await.expect("a PUBACK");
    // Behind the PUBACK on the same connection.
    first.publish(&unique("rumqttc/fence"), "", QoS::AtLeastOnce).await;
    first.cut().await;
    // Its will says that the server has seen the end of the connection, and sends nothing more to it.
    assert_eq!(text(&publisher.next().await), "gone");
    publisher.publish(&topic, "three", QoS::AtLeastOnce).await;
    let mut second = Peer::connect_with(&id, durable(0)).await;
    let again = second.receive(3).await;
    assert_eq!(again.iter().map(text).collect::<Vec<_>>(), ["one", "two", "three"]);
    assert_eq!(again.iter().map(|message| message.dup).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!((again[0].pkid, again[1].pkid), (got[1].pkid, got[2].pkid));
    second.leave().await;
    publisher.leave().await;
}

// [MQTT5-4.1.0-2] [MQTT5-3.3.2-5] [MQTT5-3.3.2-6]; DISCONNECT can change the interval (MQTT 5, 3.14.2.2.2).
#[tokio::test]
async fn sessions_and_their_messages_expire() {
    let [short, long, dropped] = ["short", "long", "dropped"].map(unique);
    let topic = unique("rumqttc/expiry");
    Peer::connect_with(&short, durable(1)).await.leave().await;
    let kept = Peer::connect_with(&long, durable(100)).await;
    kept.subscribe(&topic, QoS::AtLeastOnce).await;
    kept.leave().await;
    let normal = DisconnectReasonCode::NormalDisconnection;
    Peer::connect_with(&dropped, durable(100)).await.leave_with(normal, Some(0)).await;
    let publisher = Peer::connect(&unique("p")).await;
    for (payload, seconds) in [("soon", 1), ("later", 100)] {
        let properties = PublishProperties { message_expiry_interval: Some(seconds), ..Default::default() };
        let options = PublishOptions::new(QoS::AtLeastOnce).properties(properties);
        publisher.publish_with(&topic, payload, options).await;
    }
    let_pass(Duration::from_millis(2500)).await;
    publisher.publish(&topic, "end", QoS::AtLeastOnce).await;
    for (id, present) in [(&short, false), (&long, true), (&dropped, false)] {
        let mut peer = Peer::connect_with(id, durable(0)).await;
        assert_eq!(peer.connack.session_present, present, "{id}");
        if present {
            let got = peer.receive_until("end").await;
            assert_eq!(got.iter().map(text).collect::<Vec<_>>(), ["later"]);
            let left = properties_of(&got[0]).message_expiry_interval.expect("an interval");
            assert!((90..=98).contains(&left), "{left} s left");
        }
        peer.leave().await;
    }
    publisher.leave().await;
}

// [MQTT5-3.3.4-9] [MQTT5-4.9.0-2] [MQTT5-4.9.0-3]
#[tokio::test]
async fn the_receive_maximum_of_a_client_is_respected() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for maximum in [1, 5] {
            let [topic, fence] = ["rumqttc/flow", "rumqttc/fence"].map(unique);
            let mut slow = Peer::connect_with(&unique("s"), |options| {
                options.set_ack_mode(AckMode::Manual).set_receive_maximum(Some(maximum));
            })
            .await;
            let publisher = Peer::connect(&unique("p")).await;
            slow.subscribe(&topic, qos).await;
            slow.subscribe(&fence, QoS::AtMostOnce).await;
            let sent = numbers(20);
            publisher.publish_all(&topic, &sent, qos).await;
            let mut got = slow.receive(usize::from(maximum)).await;
            for next in 0..sent.len() {
                // Quality of service 0 is not held back, and shows that nothing else is on its way.
                publisher.publish(&fence, "fence", QoS::AtMostOnce).await;
                assert_eq!(slow.receive_until("fence").await, []);
                slow.client.ack(&got[next]).await.expect("an acknowledgement");
                if got.len() < sent.len() {
                    got.push(slow.next().await);
                }
            }
            assert_eq!(got.iter().map(text).collect::<Vec<_>>(), sent);
            slow.leave().await;
            publisher.leave().await;
        }
    }
}

// [MQTT5-4.4.0-2] [MQTT5-4.8.2-6]
#[tokio::test]
async fn a_refused_message_comes_no_more_and_to_nobody_else() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let [id, topic, end] = ["s", "rumqttc/refused", "rumqttc/end"].map(unique);
        let filter = format!("$share/group/{topic}");
        let mut refusing = Peer::connect_with(&id, |options| {
            durable(100)(options);
            options.set_ack_mode(AckMode::Manual);
        })
        .await;
        refusing.subscribe(&filter, qos).await;
        refusing.subscribe(&end, qos).await;
        let mut other = Peer::connect(&unique("o")).await;
        other.publish(&topic, "refused", qos).await;
        let message = refusing.next().await;
        let mut refusal = refusing.client.prepare_ack(&message).expect("a message to acknowledge");
        match &mut refusal {
            ManualAck::PubAck(ack) => ack.reason = PubAckReason::UnspecifiedError,
            ManualAck::PubRec(ack) => ack.reason = PubRecReason::UnspecifiedError,
        }
        refusing.client.manual_ack(refusal).await.expect("an acknowledgement");
        other.subscribe(&filter, qos).await;
        // Behind the refusal on the same connection; then only the other is left in the group.
        refusing.unsubscribe(&filter).await;
        refusing.cut().await;
        let mut again = Peer::connect_with(&id, durable(0)).await;
        assert!(again.connack.session_present);
        other.subscribe(&end, qos).await;
        other.publish(&end, "end", qos).await;
        assert_eq!(again.receive_until("end").await, []);
        assert_eq!(other.receive_until("end").await, []);
        again.leave().await;
        other.leave().await;
    }
}

// [MQTT5-3.1.4-3]
#[tokio::test]
async fn a_second_connection_takes_over() {
    let id = unique("a");
    let first = Peer::connect(&id).await;
    let second = Peer::connect(&id).await;
    let end = first.end().await;
    assert!(
        matches!(
            &end,
            ConnectionError::MqttState(StateError::ServerDisconnect {
                reason_code: DisconnectReasonCode::SessionTakenOver,
                ..
            })
        ),
        "{end:?}"
    );
    second.leave().await;
}

// [MQTT5-3.3.2-4] [MQTT5-3.3.2-15] [MQTT5-3.3.2-16] [MQTT5-3.3.2-17] [MQTT5-3.3.2-18] [MQTT5-3.3.2-20]
#[tokio::test]
async fn application_properties_arrive_unaltered() {
    let topic = unique("rumqttc/properties");
    let properties = PublishProperties {
        payload_format_indicator: Some(1),
        response_topic: Some(format!("{topic}/answer")),
        correlation_data: Some(vec![0, 1, 255].into()),
        user_properties: [("b", "2"), ("a", "1"), ("b", "1"), ("", "")]
            .map(|(a, b)| (a.into(), b.into()))
            .into(),
        content_type: Some("text/plain".into()),
        ..Default::default()
    };
    let mut peer = Peer::connect(&unique("a")).await;
    peer.subscribe_with(SubscribeFilter::new(&topic, QoS::AtLeastOnce), Some(268_435_455)).await;
    peer.publish_with(&topic, "x", PublishOptions::new(QoS::AtLeastOnce).properties(properties.clone()))
        .await;
    let got = properties_of(&peer.next().await);
    assert_eq!(got, PublishProperties { subscription_identifiers: vec![268_435_455], ..properties });
    peer.leave().await;
}

// [MQTT5-3.3.4-3] [MQTT5-3.3.4-4] [MQTT5-3.3.4-5]
#[tokio::test]
async fn subscription_identifiers_come_with_the_message() {
    let topic = unique("rumqttc/identified");
    let mut peer = Peer::connect(&unique("a")).await;
    peer.subscribe_with(SubscribeFilter::new(format!("{topic}/a"), QoS::AtLeastOnce), Some(1)).await;
    peer.subscribe_with(SubscribeFilter::new(format!("{topic}/+"), QoS::AtLeastOnce), Some(2)).await;
    peer.subscribe(&format!("{topic}-end"), QoS::AtLeastOnce).await;
    peer.publish(&format!("{topic}/a"), "x", QoS::AtLeastOnce).await;
    peer.publish(&format!("{topic}-end"), "end", QoS::AtLeastOnce).await;
    let copies = peer.receive_until("end").await;
    let mut identifiers: Vec<usize> =
        copies.iter().flat_map(|copy| properties_of(copy).subscription_identifiers).collect();
    identifiers.sort_unstable();
    assert_eq!(identifiers, [1, 2]);
    peer.leave().await;
}

// [MQTT5-3.3.2-12] [MQTT5-3.1.2-26] [MQTT5-3.3.2-11]: both ways; rumqttc fails on an alias it did not allow.
#[tokio::test]
async fn topic_aliases_stand_for_their_topics() {
    for policy in [TopicAliasPolicy::Monotonic, TopicAliasPolicy::Lru] {
        let topic = unique("rumqttc/alias");
        let mut subscriber = Peer::connect_with(&unique("s"), |options| {
            options.set_topic_alias_max(Some(3));
        })
        .await;
        let publisher = Peer::connect_with(&unique("p"), |options| {
            options.set_topic_alias_policy(policy);
        })
        .await;
        let maximum = publisher.connack.properties.clone().and_then(|found| found.topic_alias_max);
        let topics = usize::from(maximum.expect("topic aliases")) + 4;
        subscriber.subscribe(&format!("{topic}/#"), QoS::AtLeastOnce).await;
        for number in 0..100 {
            let name = format!("{topic}/{}", number % topics);
            publisher.publish(&name, &name, QoS::AtLeastOnce).await;
            let got = subscriber.next().await;
            assert_eq!((topic_of(&got), text(&got)), (name.as_str(), name.clone()));
        }
        subscriber.leave().await;
        publisher.leave().await;
    }
}

// [MQTT5-3.1.2-24] [MQTT5-3.1.2-25]
#[tokio::test]
async fn a_client_states_the_largest_packet_it_takes() {
    let topic = unique("rumqttc/small");
    let mut small = Peer::connect_with(&unique("s"), |options| {
        options.set_connect_properties(ConnectProperties {
            max_packet_size: Some(500),
            ..ConnectProperties::new()
        });
    })
    .await;
    let other = Peer::connect(&unique("o")).await;
    small.subscribe(&topic, QoS::AtLeastOnce).await;
    for payload in [&*"x".repeat(1000), "fits", "end"] {
        other.publish(&topic, payload, QoS::AtLeastOnce).await;
    }
    let got = small.receive_until("end").await;
    assert_eq!(got.iter().map(text).collect::<Vec<_>>(), ["fits"]);
    small.leave().await;
    other.leave().await;
}

// [MQTT5-4.7.2-1]
#[tokio::test]
async fn system_topics_are_readable_and_hidden_from_wildcards() {
    let mut everything = Peer::connect(&unique("e")).await;
    let mut system = Peer::connect(&unique("s")).await;
    everything.subscribe("#", QoS::AtMostOnce).await;
    system.subscribe("$SYS/#", QoS::AtMostOnce).await;
    assert!(topic_of(&system.next().await).starts_with("$SYS/"));
    let end = unique("end");
    system.publish(&unique("rumqttc/end"), &end, QoS::AtMostOnce).await;
    loop {
        let message = everything.next().await;
        assert!(!topic_of(&message).starts_with('$'));
        if message.payload == end {
            break;
        }
    }
    everything.leave().await;
    system.leave().await;
}
