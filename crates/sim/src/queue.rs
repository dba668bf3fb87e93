//! The queue scenario.
//!
//! Producers send by requests or by MQTT, and repeat what was not confirmed. Workers and subscribers settle messages in
//! every way, settle them too late or twice, or vanish with them. Operators purge, replay, redrive, create and delete.
//!
//! | what holds | where |
//! |---|---|
//! | a confirmed message is settled in each group in the end, or a dead letter, unless it was discarded | `Oracle::check_losses` |
//! | a dead letter is in one place, and does not return to its group by itself | `Oracle::died`, `Group::deliver` |
//! | the message at an offset never changes, and is stored once per deduplication id and window | `Oracle::record_message` |
//! | a refused message is never delivered | `Oracle::observe_message` |
//! | a lease has one holder until it ends | `Group::deliver` |
//! | a message that was acknowledged, rejected or purged is not delivered again | `Group::deliver` |
//! | messages with one key are delivered in order, each after the one before is settled, after a crash too | `Oracle::check_key_order` |
//! | deliveries are counted, and durable counts survive | `Group::deliver` |
//! | no message is delivered before its delay or after it expired | `Oracle::check_times`, `Group::settled` |
//! | a message that is ready is delivered, highest priority first | `Oracle::received`, `Oracle::check_withheld` |
//! | a delivery has the content that was sent, and a reply no more than was requested | `Oracle::message_of`, `check_reply_size` |
//! | only a full queue refuses as full, and no queue exceeds its limits | `Oracle::check_refusals`, `Oracle::check_room` |
//! | a loss of power takes nothing from a queue with `fsync`, and from others nothing sent after it | `Oracle::lost_power` |
//! | an acknowledged publish is stored, by way of a binding too, and once at QoS 2 | `Oracle::acknowledged`, `Oracle::record_message` |
//! | a publish is refused, or its connection closed, only when the queue is full | `Oracle::refused`, `Oracle::check_closed` |
//! | a subscriber receives what a worker would, and nothing again that it acknowledged in time | `Oracle::published` |
//! | with a single active consumer, no other one receives messages | `Group::check_single` |
//! | a lease that has not ended can be settled once | `Group::settled` |
//! | a queue has nothing of a deleted one with the same name | `Oracle::temporary` |

mod client;
mod drainer;
mod format;
mod group;
mod operator;
mod oracle;
mod plan;
mod producer;
mod publisher;
mod publishing;
mod scenario;
mod subscriber;
mod subscribing;
mod worker;

pub(crate) use scenario::QueueScenario;
