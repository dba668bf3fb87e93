//! The options of one subscription: capacity, overflow policy, metadata and replay.

/// Maximum capacity of a subscription, in messages.
pub const MAX_CAPACITY: usize = 1 << 30;

/// Default capacity of a subscription, in messages.
pub const DEFAULT_CAPACITY: usize = 1024;

/// What happens when a message arrives for a subscription whose queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// The publisher blocks until there is room. No other policy makes [`publish`](crate::Bus::publish) block.
    Block,
    /// The oldest queued message is dropped and counted. This is the default.
    #[default]
    DropOldest,
    /// The new message is dropped and counted.
    DropNewest,
    /// The new message is dropped and counted, and the subscription ends. The reader receives what is queued, and then
    /// [`RecvError::Disconnected`](crate::RecvError::Disconnected).
    Disconnect,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) capacity: usize,
    pub(crate) overflow: Overflow,
    pub(crate) metadata: bool,
    pub(crate) replay: bool,
    /// Whether the reader gets an error for dropped messages.
    pub(crate) report_lag: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            capacity: DEFAULT_CAPACITY,
            overflow: Overflow::default(),
            metadata: false,
            replay: false,
            report_lag: false,
        }
    }
}
