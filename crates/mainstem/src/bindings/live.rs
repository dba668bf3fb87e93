//! Bindings while the broker runs: those of the configuration, and those that are added to them and kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mainstem_doors::{Inbound, Outbound, Table, find_loop};
use mainstem_queue::{Refusal, Reply};
use mainstem_stream::{Answer, BoundTopic, Desk, Source};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{MqttToQueue, MqttToTopic, TopicToMqtt};
use crate::config::Config;
use crate::storage::Common;

/// The field that says which way a binding goes.
const KIND: &str = "kind";
const NAME: &str = "name";
const MQTT_TO_TOPIC: &str = "mqtt-to-topic";
const MQTT_TO_QUEUE: &str = "mqtt-to-queue";
const TOPIC_TO_MQTT: &str = "topic-to-mqtt";

/// A binding as the operations door has it.
type Object = Map<String, Value>;

/// What bindings are tied to.
pub(crate) struct Wires {
    mqtt: Arc<mainstem_broker::Shared>,
    stream: Arc<mainstem_stream::Shared>,
    table: Arc<Table>,
}

/// All bindings. Changes are made one at a time.
pub(crate) struct Live {
    config: Config,
    wires: Wires,
    known: Mutex<BTreeMap<String, Known>>,
}

/// A binding that there is, or that is being kept.
struct Known {
    object: Object,
    binding: Binding,
    /// Where it is tied; nothing until it is kept.
    place: Option<Place>,
    /// The configuration declares it, so that nobody else can take it away.
    is_configured: bool,
}

/// A binding that has been read.
#[derive(Clone)]
enum Binding {
    In(Inbound, BoundTopic),
    Out(Outbound, Source),
}

/// Where a binding is tied.
#[derive(Clone, Copy)]
enum Place {
    Sink(u32),
    Source(usize),
}

impl Wires {
    /// To the doors of this process.
    pub(crate) fn of(common: &Common) -> Self {
        let Common { mqtt, stream, bindings, .. } = common;
        Self { mqtt: Arc::clone(mqtt), stream: Arc::clone(stream), table: Arc::clone(bindings) }
    }

    /// Ties a binding. All three tables number those that go in alike.
    fn tie(&self, binding: &Binding) -> Place {
        match binding {
            Binding::In(inbound, topic) => {
                let number = self.stream.bind_topic(topic.clone());
                self.table.add_inbound(inbound.clone());
                let sink = self.mqtt.add_sink(&inbound.filter);
                debug_assert_eq!(sink as usize, number, "sinks are numbered as bound topics are");
                Place::Sink(sink)
            }
            Binding::Out(outbound, source) => {
                // Whoever takes a record knows what it is for.
                self.table.add_outbound(outbound.clone());
                Place::Source(self.stream.add_source(source.clone()))
            }
        }
    }

    fn untie(&self, binding: &Binding, place: Place) {
        match (binding, place) {
            (Binding::In(inbound, _), Place::Sink(sink)) => self.mqtt.remove_sink(&inbound.filter, sink),
            (_, Place::Source(source)) => self.stream.remove_source(source),
            (Binding::Out(..), Place::Sink(_)) => {}
        }
    }
}

fn refused(what: impl Into<String>) -> Refusal {
    Refusal::Invalid(what.into())
}

fn parse<T: DeserializeOwned>(object: &Object) -> Result<T, String> {
    let fields = object.iter().filter(|(key, _)| *key != KIND);
    let fields: Object = fields.map(|(key, value)| (key.clone(), value.clone())).collect();
    serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())
}

/// A binding as it is shown: with every field, also those that were not set.
fn show(kind: &str, binding: &impl serde::Serialize) -> Object {
    let mut object = match serde_json::to_value(binding) {
        Ok(Value::Object(object)) => object,
        _ => Object::new(),
    };
    object.retain(|_, value| !value.is_null());
    object.insert(KIND.into(), kind.into());
    object
}

impl Live {
    /// Those of the configuration, which are tied already, and those that were kept in an earlier run.
    pub(crate) fn new(config: &Config, wires: Wires) -> Arc<Self> {
        let live = Arc::new(Self { config: config.clone(), wires, known: Mutex::default() });
        let (mut sinks, mut sources) = (0.., 0..);
        for object in live.configured() {
            let (object, binding) = live.read(&object).expect("the configuration was checked");
            let place = match binding {
                Binding::In(..) => sinks.next().map(Place::Sink),
                Binding::Out(..) => sources.next().map(Place::Source),
            };
            live.put(object, binding, place, true);
        }
        for (name, text) in live.wires.stream.declared() {
            let object = serde_json::from_str(&text).map_err(|error| error.to_string());
            let read = object.and_then(|object| live.read(&object));
            match read.and_then(|(object, binding)| live.check(&name, &binding).map(|()| (object, binding))) {
                Ok((object, binding)) => {
                    let place = live.wires.tie(&binding);
                    live.put(object, binding, Some(place), false);
                }
                Err(error) => log::error!("binding {name} does not work any more: {error}"),
            }
        }
        live
    }

    /// Bindings of the configuration, in the order of their numbers.
    fn configured(&self) -> Vec<Object> {
        let topics = self.config.mqtt_to_topic.iter().map(|binding| show(MQTT_TO_TOPIC, binding));
        let queues = self.config.mqtt_to_queue.iter().map(|binding| show(MQTT_TO_QUEUE, binding));
        let sources = self.config.topic_to_mqtt.iter().map(|binding| show(TOPIC_TO_MQTT, binding));
        topics.chain(queues).chain(sources).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, object: Object, binding: Binding, place: Option<Place>, is_configured: bool) {
        let name = object.get(NAME).and_then(Value::as_str).unwrap_or_default().to_owned();
        self.lock().insert(name, Known { object, binding, place, is_configured });
    }

    /// Reads a binding, and gives it back with all its fields.
    fn read(&self, object: &Object) -> Result<(Object, Binding), String> {
        let kind = object.get(KIND).and_then(Value::as_str).unwrap_or_default();
        if kind != MQTT_TO_QUEUE && self.config.kafka.listen.is_empty() {
            return Err("it needs the Kafka door: kafka.listen is empty".into());
        }
        match kind {
            MQTT_TO_TOPIC => {
                let binding: MqttToTopic = parse(object)?;
                let (inbound, topic) = binding.read()?;
                Ok((show(kind, &binding), Binding::In(inbound, topic)))
            }
            MQTT_TO_QUEUE => {
                let binding: MqttToQueue = parse(object)?;
                let (inbound, topic) = binding.read(&self.config)?;
                Ok((show(kind, &binding), Binding::In(inbound, topic)))
            }
            TOPIC_TO_MQTT => {
                let binding: TopicToMqtt = parse(object)?;
                let (outbound, source) = binding.read()?;
                Ok((show(kind, &binding), Binding::Out(outbound, source)))
            }
            _ => Err(format!("{KIND}: it must be {MQTT_TO_TOPIC}, {MQTT_TO_QUEUE} or {TOPIC_TO_MQTT}")),
        }
    }

    /// Whether a binding may stand beside the others.
    fn check(&self, name: &str, binding: &Binding) -> Result<(), String> {
        let known = self.lock();
        if known.contains_key(name) {
            return Err(format!("two bindings are called {name:?}"));
        }
        let (mut inbound, mut outbound) = (Vec::new(), Vec::new());
        for binding in known.values().map(|known| &known.binding).chain([binding]) {
            match binding {
                Binding::In(known, _) => inbound.push(known.clone()),
                Binding::Out(known, _) => outbound.push(known.clone()),
            }
        }
        match find_loop(&inbound, &outbound) {
            Some(path) => Err(format!("bindings that feed one another in a circle: {}", path.join(", "))),
            None => Ok(()),
        }
    }

    /// All bindings, by name.
    pub(crate) fn list(&self) -> Vec<Object> {
        let known = self.lock();
        let shown = known.values().filter(|known| known.place.is_some()).map(|known| {
            let mut object = known.object.clone();
            let origin = if known.is_configured { "configuration" } else { "operations" };
            object.insert("origin".into(), origin.into());
            object
        });
        shown.collect()
    }

    /// Adds a binding, and answers when it is kept and tied. One that is there and the same is no error.
    pub(crate) fn add(self: &Arc<Self>, name: &str, mut object: Object, answer: Answer) {
        object.insert(NAME.into(), name.into());
        let (object, binding) = match self.read(&object) {
            Ok(read) => read,
            Err(what) => return answer(Reply::Refused(refused(what))),
        };
        if let Some(known) = self.lock().get(name) {
            let is_same = known.object == object && known.place.is_some();
            return answer(if is_same { Reply::Done } else { Reply::Refused(Refusal::Exists) });
        }
        if let Err(what) = self.check(name, &binding) {
            return answer(Reply::Refused(refused(what)));
        }
        let text = Value::Object(object.clone()).to_string();
        self.put(object, binding, None, false);
        let (live, kept_name) = (Arc::clone(self), name.to_owned());
        let kept = move |reply: Reply| {
            live.kept(&kept_name, &reply);
            answer(reply);
        };
        Desk::new(&self.wires.stream).declare(name, Some(&text), Box::new(kept));
    }

    /// A binding is kept, or is not.
    fn kept(&self, name: &str, reply: &Reply) {
        let mut all = self.lock();
        match (all.get_mut(name), reply) {
            (Some(known), Reply::Done) => known.place = Some(self.wires.tie(&known.binding)),
            _ => drop(all.remove(name)),
        }
    }

    /// Takes a binding away, and answers when that is kept.
    pub(crate) fn remove(self: &Arc<Self>, name: &str, answer: Answer) {
        let refusal = match self.lock().get(name) {
            None | Some(Known { place: None, .. }) => Some(refused("there is no such binding")),
            Some(Known { is_configured: true, .. }) => Some(refused("the configuration declares it")),
            Some(_) => None,
        };
        if let Some(refusal) = refusal {
            return answer(Reply::Refused(refusal));
        }
        let (live, gone_name) = (Arc::clone(self), name.to_owned());
        let gone = move |reply: Reply| {
            if matches!(reply, Reply::Done)
                && let Some(Known { binding, place: Some(place), .. }) = live.lock().remove(&gone_name)
            {
                live.wires.untie(&binding, place);
            }
            answer(reply);
        };
        Desk::new(&self.wires.stream).declare(name, None, Box::new(gone));
    }
}
