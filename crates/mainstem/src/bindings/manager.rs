//! Bindings at run time: those of the configuration, and those added over HTTP.
//!
//! An added binding is stored in the Kafka server's catalogue and becomes active once it is durable. It is listed in
//! `entries` from the moment it is submitted, so that a concurrent request cannot add a second binding with its name or
//! close a loop. Three tables number inbound bindings in the same order: sinks of the MQTT server, bound topics of
//! the Kafka server, and the [`BindingTable`]; entries are therefore activated one at a time, under the lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mainstem_kafka_server::{BoundTopic, Source};
use mainstem_node::{BindingTable, Inbound, Outbound, find_loop};
use mainstem_queue_core::{QueueError, Reply};
use mainstem_queue_server::ReplyFn;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{MqttToQueue, MqttToTopic, TopicToMqtt, check_target};
use crate::config::Config;
use crate::storage::SharedState;

/// Field with the direction of a binding.
const KIND: &str = "kind";
const NAME: &str = "name";
const MQTT_TO_TOPIC: &str = "mqtt-to-topic";
const MQTT_TO_QUEUE: &str = "mqtt-to-queue";
const TOPIC_TO_MQTT: &str = "topic-to-mqtt";

/// A binding as the HTTP API represents it.
type Object = Map<String, Value>;

/// The parts of the broker that bindings connect.
pub(crate) struct BindingTargets {
    mqtt: Arc<mainstem_mqtt_server::Shared>,
    kafka: Arc<mainstem_kafka_server::Shared>,
    table: Arc<BindingTable>,
}

/// All bindings of the broker.
pub(crate) struct BindingManager {
    config: Config,
    targets: BindingTargets,
    /// By name.
    entries: Mutex<BTreeMap<String, Entry>>,
}

/// A binding that is active or about to become durable.
struct Entry {
    object: Object,
    binding: Binding,
    /// Set once the binding is active.
    slot: Option<Slot>,
    /// Declared in the configuration; cannot be removed.
    is_configured: bool,
}

/// A checked binding.
#[derive(Clone)]
enum Binding {
    Inbound(Inbound, BoundTopic),
    Outbound(Outbound, Source),
}

/// Number of an active binding in its table.
#[derive(Clone, Copy)]
enum Slot {
    Sink(u32),
    Source(usize),
}

impl BindingTargets {
    pub(crate) fn of(shared: &SharedState) -> Self {
        let SharedState { mqtt, kafka, bindings, .. } = shared;
        Self { mqtt: Arc::clone(mqtt), kafka: Arc::clone(kafka), table: Arc::clone(bindings) }
    }

    /// Makes a binding active.
    fn activate(&self, binding: &Binding) -> Slot {
        match binding {
            Binding::Inbound(inbound, topic) => {
                let number = self.kafka.bind_topic(topic.clone());
                self.table.add_inbound(inbound.clone());
                let sink = self.mqtt.add_sink(&inbound.filter);
                debug_assert_eq!(sink as usize, number, "sinks are numbered as bound topics are");
                Slot::Sink(sink)
            }
            Binding::Outbound(outbound, source) => {
                // The table comes first: a reader looks each record's binding up in it.
                self.table.add_outbound(outbound.clone());
                Slot::Source(self.kafka.add_source(source.clone()))
            }
        }
    }

    fn deactivate(&self, binding: &Binding, slot: Slot) {
        match (binding, slot) {
            (Binding::Inbound(inbound, _), Slot::Sink(sink)) => self.mqtt.remove_sink(&inbound.filter, sink),
            (_, Slot::Source(source)) => self.kafka.remove_source(source),
            (Binding::Outbound(..), Slot::Sink(_)) => {}
        }
    }
}

fn invalid(what: impl Into<String>) -> QueueError {
    QueueError::Invalid(what.into())
}

fn parse<T: DeserializeOwned>(object: &Object) -> Result<T, String> {
    let fields = object.iter().filter(|(key, _)| *key != KIND);
    let fields: Object = fields.map(|(key, value)| (key.clone(), value.clone())).collect();
    serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())
}

/// Returns all fields of a binding, including defaults.
fn show(kind: &str, binding: &impl serde::Serialize) -> Object {
    let mut object = match serde_json::to_value(binding) {
        Ok(Value::Object(object)) => object,
        _ => Object::new(),
    };
    object.retain(|_, value| !value.is_null());
    object.insert(KIND.into(), kind.into());
    object
}

impl BindingManager {
    /// Lists the bindings of the configuration, which are active already, and activates those stored in the catalogue.
    pub(crate) fn new(config: &Config, targets: BindingTargets) -> Arc<Self> {
        let manager = Arc::new(Self { config: config.clone(), targets, entries: Mutex::default() });
        let (mut sinks, mut sources) = (0.., 0..);
        for object in manager.configured() {
            let (object, binding) = manager.read(&object).expect("the configuration was checked");
            let slot = match binding {
                Binding::Inbound(..) => sinks.next().map(Slot::Sink),
                Binding::Outbound(..) => sources.next().map(Slot::Source),
            };
            manager.put(object, binding, slot, true);
        }
        for (name, text) in manager.targets.kafka.declared() {
            let object = serde_json::from_str(&text).map_err(|error| error.to_string());
            let read = object.and_then(|object| manager.read(&object));
            match read
                .and_then(|(object, binding)| manager.check(&name, &binding).map(|()| (object, binding)))
            {
                Ok((object, binding)) => {
                    let slot = manager.targets.activate(&binding);
                    manager.put(object, binding, Some(slot), false);
                }
                Err(error) => {
                    log::error!("binding {name}: stored binding is invalid and stays inactive: {error}");
                }
            }
        }
        manager
    }

    /// Bindings of the configuration, in the order in which they were activated.
    fn configured(&self) -> Vec<Object> {
        let topics = self.config.mqtt_to_topic.iter().map(|binding| show(MQTT_TO_TOPIC, binding));
        let queues = self.config.mqtt_to_queue.iter().map(|binding| show(MQTT_TO_QUEUE, binding));
        let sources = self.config.topic_to_mqtt.iter().map(|binding| show(TOPIC_TO_MQTT, binding));
        topics.chain(queues).chain(sources).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, object: Object, binding: Binding, slot: Option<Slot>, is_configured: bool) {
        let name = object.get(NAME).and_then(Value::as_str).unwrap_or_default().to_owned();
        self.lock().insert(name, Entry { object, binding, slot, is_configured });
    }

    /// Checks a binding. Returns it with all its fields.
    fn read(&self, object: &Object) -> Result<(Object, Binding), String> {
        let kind = object.get(KIND).and_then(Value::as_str).unwrap_or_default();
        if kind != MQTT_TO_QUEUE && self.config.kafka.listen.is_empty() {
            return Err("bindings to Kafka topics need a Kafka listener: kafka.listen is empty".into());
        }
        match kind {
            MQTT_TO_TOPIC => {
                let binding: MqttToTopic = parse(object)?;
                let (inbound, topic) = binding.read(self.config.mqtt.max_topic_levels)?;
                check_target(&topic, self.config.security.audit_topic().as_ref())?;
                Ok((show(kind, &binding), Binding::Inbound(inbound, topic)))
            }
            MQTT_TO_QUEUE => {
                let binding: MqttToQueue = parse(object)?;
                let (inbound, topic) = binding.read(&self.config.queue, self.config.mqtt.max_topic_levels)?;
                check_target(&topic, self.config.security.audit_topic().as_ref())?;
                Ok((show(kind, &binding), Binding::Inbound(inbound, topic)))
            }
            TOPIC_TO_MQTT => {
                let binding: TopicToMqtt = parse(object)?;
                let (outbound, source) = binding.read()?;
                Ok((show(kind, &binding), Binding::Outbound(outbound, source)))
            }
            _ => Err(format!("{KIND}: must be {MQTT_TO_TOPIC}, {MQTT_TO_QUEUE} or {TOPIC_TO_MQTT}")),
        }
    }

    /// Checks a binding against all others: its name, and loops.
    fn check(&self, name: &str, binding: &Binding) -> Result<(), String> {
        let entries = self.lock();
        if entries.contains_key(name) {
            return Err(format!("two bindings have the name {name:?}"));
        }
        let (mut inbound, mut outbound) = (Vec::new(), Vec::new());
        for binding in entries.values().map(|entry| &entry.binding).chain([binding]) {
            match binding {
                Binding::Inbound(binding, _) => inbound.push(binding.clone()),
                Binding::Outbound(binding, _) => outbound.push(binding.clone()),
            }
        }
        match find_loop(&inbound, &outbound) {
            Some(path) => Err(format!("bindings form a loop: {}", path.join(", "))),
            None => Ok(()),
        }
    }

    /// All active bindings, sorted by name.
    pub(crate) fn list(&self) -> Vec<Object> {
        let entries = self.lock();
        let shown = entries.values().filter(|entry| entry.slot.is_some()).map(|entry| {
            let mut object = entry.object.clone();
            let origin = if entry.is_configured { "configuration" } else { "operations" };
            object.insert("origin".into(), origin.into());
            object
        });
        shown.collect()
    }

    /// Adds a binding. Replies once it is durable and active. Adding an identical binding again succeeds.
    pub(crate) fn add(self: &Arc<Self>, name: &str, mut object: Object, reply: ReplyFn) {
        object.insert(NAME.into(), name.into());
        let (object, binding) = match self.read(&object) {
            Ok(read) => read,
            Err(what) => return reply(Reply::Refused(invalid(what))),
        };
        if let Some(entry) = self.lock().get(name) {
            let is_same = entry.object == object && entry.slot.is_some();
            return reply(if is_same { Reply::Done } else { Reply::Refused(QueueError::Exists) });
        }
        if let Err(what) = self.check(name, &binding) {
            return reply(Reply::Refused(invalid(what)));
        }
        let text = Value::Object(object.clone()).to_string();
        self.put(object, binding, None, false);
        let (manager, stored_name) = (Arc::clone(self), name.to_owned());
        let stored = move |result: Reply| {
            manager.stored(&stored_name, &result);
            reply(result);
        };
        self.targets.kafka.queue_client().declare(name, Some(&text), Box::new(stored));
    }

    /// Activates a binding once it is durable, or forgets it if it could not be stored.
    fn stored(&self, name: &str, result: &Reply) {
        let mut entries = self.lock();
        match (entries.get_mut(name), result) {
            (Some(entry), Reply::Done) => entry.slot = Some(self.targets.activate(&entry.binding)),
            _ => drop(entries.remove(name)),
        }
    }

    /// Removes a binding. Replies once the removal is durable.
    pub(crate) fn remove(self: &Arc<Self>, name: &str, reply: ReplyFn) {
        let error = match self.lock().get(name) {
            None | Some(Entry { slot: None, .. }) => Some(invalid("unknown binding")),
            Some(Entry { is_configured: true, .. }) => {
                Some(invalid("the binding is declared in the configuration and cannot be removed"))
            }
            Some(_) => None,
        };
        if let Some(error) = error {
            return reply(Reply::Refused(error));
        }
        let (manager, removed_name) = (Arc::clone(self), name.to_owned());
        let removed = move |result: Reply| {
            if matches!(result, Reply::Done)
                && let Some(Entry { binding, slot: Some(slot), .. }) = manager.lock().remove(&removed_name)
            {
                manager.targets.deactivate(&binding, slot);
            }
            reply(result);
        };
        self.targets.kafka.queue_client().declare(name, None, Box::new(removed));
    }
}
