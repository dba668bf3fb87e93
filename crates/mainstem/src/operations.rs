//! The operations door of this process: what it asks, and who answers.

use std::sync::Arc;
use std::time::Duration;

use mainstem_admin::{Bound, Broker, Control, Reply, Settings};
use mainstem_queue::Request;
use mainstem_stream::Desk;
use serde_json::{Map, Value};

use crate::bindings::Live;
use crate::config::HttpConfig;
use crate::serve::resolve;
use crate::storage::Common;
use crate::watched::Failing;

/// The broker as the operations door sees it.
struct Operated {
    desk: Desk,
    mqtt: Arc<mainstem_broker::Shared>,
    failing: Failing,
    bindings: Arc<Live>,
}

impl Broker for Operated {
    fn ask(&self, queue: &str, request: Request, reply: Reply) {
        self.desk.ask(queue, request, reply);
    }

    fn queues(&self) -> Vec<Arc<str>> {
        self.desk.queues()
    }

    fn bindings(&self) -> Vec<Map<String, Value>> {
        self.bindings.list()
    }

    fn bind(&self, name: &str, binding: Map<String, Value>, reply: Reply) {
        self.bindings.add(name, binding, reply);
    }

    fn unbind(&self, name: &str, reply: Reply) {
        self.bindings.remove(name, reply);
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = self.failing.words();
        if self.mqtt.is_failing() {
            faults.push("sessions or retained messages cannot be kept".into());
        }
        faults
    }
}

/// Takes the door's address, if there is to be one.
///
/// # Errors
/// If it is no address, or somebody else has it.
pub(crate) fn bind(config: &HttpConfig) -> Result<Option<Bound>, String> {
    if config.listen.is_empty() {
        return Ok(None);
    }
    let address = resolve("http", &config.listen)?;
    Bound::bind(address).map(Some).map_err(|error| format!("http.listen: {address}: {error}"))
}

/// Opens the door.
///
/// # Errors
/// If the system gives no thread.
pub(crate) fn open(
    bound: Bound,
    config: &HttpConfig,
    common: &Common,
    bindings: Arc<Live>,
) -> Result<Control, String> {
    let settings = Settings {
        body_bytes_max: config.max_body_bytes as usize,
        connections_max: config.max_connections as usize,
        patience: Duration::from_secs(30),
    };
    let broker = Operated {
        desk: Desk::new(&common.stream),
        mqtt: Arc::clone(&common.mqtt),
        failing: common.failing.clone(),
        bindings,
    };
    bound.start(settings, Arc::new(broker)).map_err(|error| format!("http: {error}"))
}
