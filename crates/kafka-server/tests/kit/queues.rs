//! Operations on work queues for tests.

use mainstem_log::{Header, Headers, put_headers};
use mainstem_queue_core::{
    DEFAULT_GROUP, Delivery, Disposition, Info, NewMessage, QueueError, Receipt, Reply, Request, Settlement,
};

use super::Broker;

pub(crate) const JOBS: &str = "jobs";

pub(crate) fn message(value: &str) -> NewMessage {
    NewMessage { value: value.as_bytes().to_vec(), ..NewMessage::default() }
}

pub(crate) fn with_headers(value: &str, headers: &[(&str, &str)]) -> NewMessage {
    let mut encoded = Vec::new();
    let headers = headers.iter().map(|(key, value)| Header { key, value: Some(value.as_bytes()) });
    put_headers(headers, &mut encoded);
    NewMessage { headers: encoded, ..message(value) }
}

pub(crate) fn keyed(key: &str, value: &str) -> NewMessage {
    NewMessage { key: Some(key.as_bytes().to_vec()), ..message(value) }
}

pub(crate) fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.payload.record().value.unwrap_or_default().to_vec()).unwrap()
}

pub(crate) fn header(delivery: &Delivery, name: &str) -> Option<String> {
    let record = delivery.payload.record();
    let mut headers = Headers::parse(record.headers).unwrap().map(Result::unwrap);
    let found = headers.find(|header| header.key == name)?;
    Some(String::from_utf8(found.value?.to_vec()).unwrap())
}

pub(crate) fn receive_as(group: &str, consumer: u64, max: u32, wait_ms: u64) -> Request {
    Request::Receive { group: group.into(), consumer, max, bytes_max: usize::MAX, lease_ms: None, wait_ms }
}

/// Operations on a queue, sent from shard 0.
pub(crate) trait Queues {
    fn create(&mut self, queue: &str, settings: &[(&str, &str)]) -> Reply;
    fn put(&mut self, queue: &str, messages: Vec<NewMessage>) -> Vec<u64>;
    fn get(&mut self, queue: &str, max: u32) -> Vec<Delivery>;
    fn settle(&mut self, queue: &str, receipt: Receipt, disposition: Disposition) -> Result<(), QueueError>;
    fn info(&mut self, queue: &str) -> Info;
}

impl Queues for Broker {
    fn create(&mut self, queue: &str, settings: &[(&str, &str)]) -> Reply {
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.ask_queue(0, queue, Request::Create { settings })
    }

    #[track_caller]
    fn put(&mut self, queue: &str, messages: Vec<NewMessage>) -> Vec<u64> {
        match self.ask_queue(0, queue, Request::Send(messages)) {
            Reply::Sent(offsets) => offsets.into_iter().map(Result::unwrap).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn get(&mut self, queue: &str, max: u32) -> Vec<Delivery> {
        match self.ask_queue(0, queue, receive_as(DEFAULT_GROUP, 1, max, 0)) {
            Reply::Received(deliveries) => deliveries,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn settle(&mut self, queue: &str, receipt: Receipt, disposition: Disposition) -> Result<(), QueueError> {
        let settlements = vec![Settlement { receipt, disposition }];
        match self.ask_queue(0, queue, Request::Settle { group: DEFAULT_GROUP.into(), settlements }) {
            Reply::Settled(mut outcomes) => outcomes.remove(0),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn info(&mut self, queue: &str) -> Info {
        match self.ask_queue(0, queue, Request::Info) {
            Reply::Info(info) => *info,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn texts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(text).collect()
}
