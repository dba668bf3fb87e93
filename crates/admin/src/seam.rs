//! The broker as this crate sees it.

use std::sync::Arc;

use mainstem_queue::Request;
use serde_json::{Map, Value};

/// Is called once with the reply, on any thread, and returns at once.
pub type Reply = Box<dyn FnOnce(mainstem_queue::Reply) + Send>;

/// What the operations door asks of the broker. All of it returns at once, on whatever thread.
pub trait Broker: Send + Sync + 'static {
    /// Asks a queue for something. A broker that ends may drop `reply` without calling it.
    fn ask(&self, queue: &str, request: Request, reply: Reply);

    /// Names of all queues, in order.
    fn queues(&self) -> Vec<Arc<str>>;

    /// All bindings, by name.
    fn bindings(&self) -> Vec<Map<String, Value>>;

    /// Adds a binding under a name; `reply` is told [`mainstem_queue::Reply::Done`] when it works and is kept.
    fn bind(&self, name: &str, binding: Map<String, Value>, reply: Reply);

    /// Takes a binding away; `reply` is told when that is kept.
    fn unbind(&self, name: &str, reply: Reply);

    /// What keeps the broker from doing its work, in words; empty if all is well.
    fn faults(&self) -> Vec<String>;
}
